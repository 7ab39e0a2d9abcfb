"""Contracts of what several processes share: rows that are split between them, and nested values that they exchange.

Part of `seatrial.relations.contracts`, which lists every component. Rows are numbered from 0; a plan is a made input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case

if TYPE_CHECKING:
    from torch import Tensor

SplitAs = Literal[
    "list", "tuple", "tensor", "tensor of vectors", "dictionary of lists", "dictionary of tensors", "data set"
]


@dataclass(frozen=True, kw_only=True)
class SplitPlan(Case):
    """Rows that all processes have and each takes its part of."""

    kind: SplitAs = "list"
    """Of the container that holds the rows."""
    num_rows: int = 5
    num_ranks: int = 2
    padded: bool = False
    """Whether the last row fills up parts that are shorter."""
    twice: bool = False
    """Whether the container was split once before."""
    seed: int = 0

    def smaller(self) -> Iterator[SplitPlan]:
        """Yield the plan of one row less."""
        if self.num_rows > 1:
            yield replace(self, num_rows=self.num_rows - 1)


class SplitPart(NamedTuple):
    """What a process has of a split."""

    rows: tuple[int, ...]
    """In the block of the split; -1 for a row whose values are not all its own."""
    given: tuple[int, ...]
    """In the container that was split, after the block."""


@runtime_checkable
class ProcessSplits(Protocol):
    """Splits the rows of a container between processes."""

    def split(self, plan: SplitPlan) -> Sequence[SplitPart]:
        """Return the part of each process, in the order of processes."""
        ...


Exchange = Literal[
    "gather",
    "sum",
    "mean",
    "broadcast",
    "pad",
    "concatenate",
    "float32",
    "gather objects",
    "broadcast objects",
]


@dataclass(frozen=True, kw_only=True)
class ExchangePlan(Case):
    """What processes do with nested values of many types; `oracles.exchanges` says which values."""

    how: Exchange
    num_ranks: int = 2
    source: int = 0
    """The process that sends, in a broadcast."""
    seed: int = 0


@runtime_checkable
class NestedExchanges(Protocol):
    """Exchanges nested containers of tensors, or objects, between processes."""

    def exchanged_nested(self, plan: ExchangePlan) -> Sequence[Mapping[str, Tensor | str]]:
        """Return what each process has, by place; under `types` the types of the containers as text."""
        ...


@dataclass(frozen=True, kw_only=True)
class SeedPlan(Case):
    """A seed that each process sets."""

    num_ranks: int = 2
    own: bool = False
    """Whether each process is to have a seed of its own, made from this one."""
    seed: int = 0


@runtime_checkable
class SeededDraws(Protocol):
    """Sets the seeds of all sources of random numbers."""

    def seeded_draws(self, plan: SeedPlan) -> Sequence[Mapping[str, Sequence[float]]]:
        """Return the random numbers of each process, by their source, drawn after the seed is set."""
        ...


@runtime_checkable
class ExecutableBatchSize(Protocol):
    """Looks for a batch size that fits into memory."""

    def tried_batch_sizes(self, start: int, fits: int) -> Sequence[int]:
        """Return the batch sizes that are tried, in order, where those up to `fits` do not run out of memory."""
        ...

    def passes_errors_on(self) -> bool:
        """Return whether an error that is not about memory is raised, and not taken for a batch that is too large."""
        ...
