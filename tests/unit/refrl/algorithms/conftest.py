"""Adversarial batches for the algorithms: unequal lengths, a fully masked row, one-token completions, dirty padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from refrl.algorithms.batching import Batch

LENGTHS = (7, 1, 4, 0, 3, 6)
HOLES = {(0, 2), (0, 3), (5, 0)}
"""Tokens that the environment wrote, in the middle and at the start of completions."""


@dataclass
class Case:
    """A batch with the current policy's log-probabilities, in float64."""

    batch: Batch
    logprobs_BT: Tensor
    entropy_BT: Tensor

    def valid(self) -> list[list[int]]:
        """Return the valid token positions of each row."""
        mask = self.batch.mask_BT.tolist()
        return [[t for t, value in enumerate(row) if value] for row in mask]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.valid()))

    @property
    def num_seqs(self) -> int:
        return sum(bool(row) for row in self.valid())


@pytest.fixture
def make_case() -> Callable[..., Case]:
    """Build a case; `padding` stands at every masked position of every float tensor."""

    def build(seed: int = 0, *, padding: float = 0.0, spread: float = 0.5) -> Case:
        generator = torch.Generator().manual_seed(seed)
        B, T, longest_prompt = len(LENGTHS), max(LENGTHS), 3
        mask_BT = torch.zeros(B, T, dtype=torch.float64)
        for row, length in enumerate(LENGTHS):
            mask_BT[row, :length] = 1
        for hole in HOLES:
            mask_BT[hole] = 0

        def noise(scale: float) -> Tensor:
            return scale * torch.randn(B, T, generator=generator, dtype=torch.float64)

        def dirty(values_BT: Tensor) -> Tensor:
            return torch.where(mask_BT.bool(), values_BT, padding)

        base_BT = -2 + noise(0.8)
        prompt_lens_B = torch.tensor([1, 3, 2, 1, 3, 2])
        attention_mask_BS = torch.zeros(B, longest_prompt + T, dtype=torch.long)
        for row, length in enumerate(LENGTHS):
            attention_mask_BS[row, : int(prompt_lens_B[row]) + length] = 1
        batch = Batch(
            input_ids_BS=torch.randint(1, 50, attention_mask_BS.shape, generator=generator),
            attention_mask_BS=attention_mask_BS,
            completion_ids_BT=torch.randint(1, 50, (B, T), generator=generator),
            mask_BT=mask_BT,
            prompt_lens_B=prompt_lens_B,
            sampling_logprobs_BT=dirty(base_BT + noise(spread)),
            rewards_B=torch.tensor([1.0, 0.0, 0.25, 1.0, 0.5, 0.0], dtype=torch.float64),
            group_ids_B=torch.tensor([4, 9, 4, 9, 4, 9]),
            advantages_B=torch.tensor([1.3, -0.7, 0.4, 2.0, -1.9, -0.2], dtype=torch.float64),
            old_logprobs_BT=dirty(base_BT + noise(spread)),
            ref_logprobs_BT=dirty(base_BT + noise(spread)),
        )
        return Case(batch, dirty(base_BT + noise(spread)), dirty(noise(1.0).abs()))

    return build
