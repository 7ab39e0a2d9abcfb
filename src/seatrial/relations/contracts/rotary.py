"""Contract of rotary embeddings by the kind of their scaling.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RotaryPlan(Case):
    """Rows whose places are turned; a made input."""

    kind: str = "default"
    """`default`, `linear`, `dynamic`, `yarn`, `longrope` or `llama3`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the kind, by the names of Transformers' `rope_parameters`."""
    head_dim: int = 16
    base: float = 10000.0
    max_positions: int = 64
    """The longest row of the configuration; for kinds with an original length, that times the factor."""
    lengths: tuple[int, ...] = (40,)
    """Of the rows that one module is given, one after the other."""

    def smaller(self) -> Iterator[RotaryPlan]:
        """Yield the plan of the last row alone."""
        if len(self.lengths) > 1:
            yield replace(self, lengths=self.lengths[-1:])


@runtime_checkable
class Rotary(Protocol):
    """The module that computes cosines and sines of places."""

    def turned(self, plan: RotaryPlan) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [S, head_dim] of the places 0 to S - 1 of the last row.

        The first half of `head_dim` has each frequency once, the second half repeats them; both are multiplied by the
        attention factor of the kind.

        Raises:
            NotServed: the release has no such kind.
        """
        ...
