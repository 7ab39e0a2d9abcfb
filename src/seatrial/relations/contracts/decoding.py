"""Contract of generation by options: what a model's raw logits become, and which ids are chosen.

Part of `seatrial.relations.contracts`, which lists every component. Samplers of rollouts: `generation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DecodingPlan(Case):
    """Prompts and options by the names of Transformers' `GenerationConfig`; a made input."""

    prompts: tuple[tuple[int, ...], ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Options that the model has of its own, which the others override."""
    num_new: int = 6
    """Ids of a completion at most."""
    ends: bool = True
    """Whether the end id ends a completion."""
    embedded: bool = False
    """Whether the model is given embeddings of the prompts in place of ids."""
    seed: int = 0

    def smaller(self) -> Iterator[DecodingPlan]:
        """Yield the plan of one prompt."""
        if len(self.prompts) > 1:
            yield replace(self, prompts=self.prompts[:1])

    def describe(self) -> Mapping[str, Any]:
        """Return it as JSON values."""
        return {**vars(self), "options": {str(name): str(value) for name, value in self.options.items()}}


class Decoded(NamedTuple):
    """One completion."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    """As they are returned, padding after an end id included."""
    logits: Sequence[Tensor]
    """[V] raw, of each step; empty for beams."""
    scores: Sequence[Tensor]
    """[V] that the id of each step is chosen by; empty for beams."""
    transitions: tuple[float, ...]
    """Log-probability of each id, as the stack computes it of what it returned."""
    total: float | None
    """The score of a beam."""


@runtime_checkable
class Decoding(Protocol):
    """Generates with a tiny model."""

    vocab_size: int
    end_id: int
    pad_id: int

    def decoded(self, plan: DecodingPlan) -> list[Decoded]:
        """Return the completions of the prompts, those of one prompt next to each other.

        Raises:
            NotServed: the release has no such option.
        """
        ...

    def next_logits(self, ids: Sequence[int]) -> Tensor:
        """Return the model's raw logits [S, V] of one row, computed at once."""
        ...
