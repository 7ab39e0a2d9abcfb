"""Made logits with completions in them: unequal lengths, a vocabulary that no block divides, peaked distributions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from seatrial.relations.cases.case import Case


@dataclass(frozen=True, kw_only=True)
class LogitsCase(Case):
    """Logits of B rows, with prompts and completions of unequal length."""

    prompt_lens: tuple[int, ...]
    completion_lens: tuple[int, ...]
    vocab_size: int
    temperature: float
    sharpness: float
    seed: int

    def smaller(self) -> Iterator[LogitsCase]:
        """Yield fewer rows, shorter rows, temperature 1."""
        for drop in range(len(self.prompt_lens)):
            if len(self.prompt_lens) > 1:
                keep = [index for index in range(len(self.prompt_lens)) if index != drop]
                yield replace(
                    self,
                    prompt_lens=tuple(self.prompt_lens[index] for index in keep),
                    completion_lens=tuple(self.completion_lens[index] for index in keep),
                )
        if max(self.completion_lens) > 1:
            yield replace(self, completion_lens=tuple(max(1, length // 2) for length in self.completion_lens))
        if max(self.prompt_lens) > 1:
            yield replace(self, prompt_lens=tuple(max(1, length // 2) for length in self.prompt_lens))
        if self.temperature != 1.0:
            yield replace(self, temperature=1.0)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits_BSV, completion_ids_BT and prompt_lens_B."""
        generator = torch.Generator().manual_seed(self.seed)
        T = max(self.completion_lens)
        S = max(self.prompt_lens) + T
        shape = (len(self.prompt_lens), S, self.vocab_size)
        logits_BSV = torch.randn(shape, generator=generator) * self.sharpness
        ids_BT = torch.randint(self.vocab_size, (shape[0], T), generator=generator)
        return logits_BSV, ids_BT, torch.tensor(self.prompt_lens)


def make_logits_case(stack: Any, seed: int, tidy: bool) -> LogitsCase:
    """Return logits with unequal prompts, a vocabulary that no block divides, and sometimes peaked."""
    rng = np.random.default_rng([seed, 12])
    if tidy:
        return LogitsCase(
            prompt_lens=(3,) * 4,
            completion_lens=(5,) * 4,
            vocab_size=64,
            temperature=1.0,
            sharpness=1.0,
            seed=seed,
        )
    return LogitsCase(
        prompt_lens=tuple(int(length) for length in rng.integers(1, 9, size=5)),
        completion_lens=tuple(int(length) for length in rng.integers(1, 8, size=5)),
        vocab_size=int(rng.choice([37, 131, 1031])),
        temperature=float(rng.choice([0.5, 0.7, 1.3])),
        sharpness=float(rng.choice([1.0, 8.0])),
        seed=seed,
    )
