"""What the sampling loop needs from a model: prefill once, then one token per row and step.

Shapes: P distinct prompts, B rows, S slots of the key/value cache, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class PaddedPrompts:
    """Distinct prompts, padded on the left so that every row's next token is in the same slot."""

    ids_PS: torch.Tensor
    """Long; the value of a padded slot is never read by another slot."""
    lens_P: torch.Tensor
    """Long; real tokens of each prompt."""
    is_ragged: bool
    """Whether any prompt is padded."""
    media: torch.Tensor | None = None
    """Image or sound of each prompt, [P, ...]; None where they are text."""

    def mask_PS(self) -> torch.Tensor:
        """Return True on real tokens."""
        width = self.ids_PS.shape[1]
        slots_S = torch.arange(width, device=self.ids_PS.device)
        return slots_S >= (width - self.lens_P)[:, None]

    def positions_PS(self) -> torch.Tensor:
        """Return the position of each slot's token in its own prompt; 0 on padding."""
        width = self.ids_PS.shape[1]
        slots_S = torch.arange(width, device=self.ids_PS.device)
        return (slots_S - (width - self.lens_P)[:, None]).clamp_(min=0)


def pad_prompts(prompts: Sequence[Sequence[int]], pad_token_id: int, device: torch.device) -> PaddedPrompts:
    """Pad prompts on the left to the longest one; no prompt may be empty."""
    lens = [len(prompt) for prompt in prompts]
    width = max(lens)
    rows = [[pad_token_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    return PaddedPrompts(
        ids_PS=torch.tensor(rows, device=device),
        lens_P=torch.tensor(lens, device=device),
        is_ragged=min(lens) != width,
    )


class Decoder(Protocol):
    """A model with the state of one call of `generate`; every method returns logits of the next token."""

    def prefill(self, prompts: PaddedPrompts) -> torch.Tensor:
        """Read the prompts into the cache; return logits_PV."""
        ...

    def expand(self, prompt_of_row_B: torch.Tensor) -> None:
        """Make one row of the cache for each sequence: row b continues prompt `prompt_of_row_B[b]`."""
        ...

    def step(self, ids_B: torch.Tensor) -> torch.Tensor:
        """Append one token to every row; return logits_BV."""
        ...

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows, in this order (long indices)."""
        ...
