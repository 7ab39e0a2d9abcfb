"""Contract of what a trainer's completions are drawn from: the distribution of each token, not the options passed on.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case

if TYPE_CHECKING:
    from torch import Tensor

NEUTRAL: Mapping[str, float] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""Settings of generation by name, each with the value that changes nothing."""


@dataclass(frozen=True, kw_only=True)
class DrawingCase(Case):
    """Settings of the trainer's configuration, and of the model's own generation; a made input."""

    options: Mapping[str, float] = field(default_factory=dict)
    own: Mapping[str, float] = field(default_factory=dict)
    max_new_tokens: int = 6
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One token of a completion that has not ended, before it is drawn."""

    ids: tuple[int, ...]
    """Prompt and completion so far, as the generation has them, padding included."""
    logits_V: Tensor
    """Of the model."""
    scores_V: Tensor
    """Unnormalized log-probabilities that it is drawn with."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The completions of one generation."""

    draws: tuple[Draw, ...]
    prompts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """Ids and attention mask of each row's prompt, as the generation gets them."""
    completions: tuple[tuple[int, ...], ...]
    """Of each row, up to and with its end token."""
    ended: tuple[bool, ...]


@runtime_checkable
class DrawnTokens(Protocol):
    """The generation of a trainer that samples, on the adapter's own prompts, which are of unequal lengths."""

    drawing_defaults: Mapping[str, float]
    """Settings that the trainer's configuration has, by the names of `NEUTRAL`, with the documented defaults."""
    drawn_prompts: frozenset[tuple[int, ...]]

    def draw(self, case: DrawingCase) -> Drawn:
        """Return what one generation for a training step draws, and what from.

        Raises:
            NotServed: the configuration has no such option.
        """
        ...
