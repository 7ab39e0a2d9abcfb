"""Contracts of what steers a run: the coefficient of a KL penalty, and rows shared out by length.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case


@dataclass(frozen=True, kw_only=True)
class ControllerPlan(Case):
    """A controller of a KL coefficient and what it is given; a made input."""

    kind: Literal["fixed", "adaptive"]
    coefficient: float
    """At the start."""
    target: float
    """KL divergence that an adaptive controller aims at."""
    horizon: int
    """Samples over which an adaptive controller makes up for an error."""
    updates: tuple[tuple[float, int], ...]
    """KL divergence and number of samples of each update."""

    def smaller(self) -> Iterator[ControllerPlan]:
        """Yield the plan of one update."""
        if len(self.updates) > 1:
            yield replace(self, updates=self.updates[:1])


@runtime_checkable
class KLController(Protocol):
    """Makes controllers of the coefficient of a KL penalty."""

    def kl_coefficients(self, plan: ControllerPlan) -> Sequence[float]:
        """Return the coefficient after each update."""
        ...


@dataclass(frozen=True, kw_only=True)
class SharesCase(Case):
    """Lengths of rows that are shared out; a made input."""

    lengths: tuple[int, ...]
    num_parts: int
    equal_sizes: bool
    """Whether parts have as many rows each."""


@runtime_checkable
class LengthBalance(Protocol):
    """Shares rows out so that parts have about as many tokens each."""

    def balanced_parts(
        self, lengths: Sequence[int], num_parts: int, equal_sizes: bool
    ) -> Sequence[Sequence[int]]:
        """Return the numbers of the rows of each part."""
        ...
