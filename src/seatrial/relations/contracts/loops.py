"""Contracts of what wraps a training loop in several processes: its loader, accumulation, gathered metrics and state.

Part of `seatrial.relations.contracts`, which lists every component. Rows are numbered from 0; a plan is a made input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case

ShuffledBy = Literal["generator", "process", "sampler"]
BatchedBy = Literal["loader", "batch sampler", "sampler of batches", "list of batches"]
Epochs = Sequence[Sequence[Sequence[int]]]
"""Numbers of rows by epoch and batch."""


@dataclass(frozen=True, kw_only=True)
class LoaderPlan(Case):
    """How rows are read."""

    num_rows: int = 11
    batch_size: int = 2
    """Of a process; of all processes together if `split`."""
    num_ranks: int = 2
    num_epochs: int = 2
    shuffle: bool = False
    shuffled_by: ShuffledBy = "generator"
    """What shuffles: a generator that the loader is given; the random numbers of the process, which a run seeds;
    or a sampler of the caller, or iterable data, whose order is that of the epoch that they are given."""
    iterable: bool = False
    """Whether the data only give one row after the other, without a number of rows."""
    split: bool = False
    dispatch: bool = False
    """Whether the first process reads for all."""
    even: bool = True
    """Whether the last batches are filled up with rows from the beginning."""
    drop_last: bool = False
    drawn: int | None = None
    """Rows that the sampler draws, the first ones of the data; None: all."""
    skip: int = 0
    """Batches of the first epoch that is read that are left out, as after a resume."""
    first_epoch: int = 0
    """The epoch that is read first, as after a resume."""
    batched_by: BatchedBy = "loader"
    """What makes batches of rows: the loader, by a size; a sampler of batches of the caller, given as such; or the same
    given as the sampler of single rows, to a loader with `batch_size=None`; or batches in a list, without a size."""
    own_draws: bool = False
    """Whether each process has drawn other random numbers before it reads, as after dropout or its own augmentation."""
    seed: int = 0

    @property
    def rows_of_step(self) -> int:
        """Rows that all processes read at once."""
        return self.batch_size * (1 if self.split else self.num_ranks)

    @property
    def num_drawn(self) -> int:
        """Rows of an epoch, without those that fill it up."""
        return self.num_rows if self.drawn is None else self.drawn

    def smaller(self) -> Iterator[LoaderPlan]:
        """Yield the plan of one epoch, or of fewer rows."""
        if self.num_epochs > 1 and not self.first_epoch:
            yield replace(self, num_epochs=1)
        if self.num_rows > self.rows_of_step + 1 and self.drawn is None and not self.skip:
            yield replace(self, num_rows=self.num_rows - 1)


@runtime_checkable
class RowLoader(Protocol):
    """Distributes the rows of a data set over processes and epochs."""

    def loaded_rows(self, plan: LoaderPlan) -> Sequence[Epochs]:
        """Return the rows that each process reads, in the order of processes."""
        ...


@runtime_checkable
class SizedLoader(RowLoader, Protocol):
    """One that says how many batches it reads, as loops ask to plan their steps."""

    def said_lengths(self, plan: LoaderPlan) -> Sequence[Sequence[int]]:
        """Return how many batches the loader of each process says that it reads, by epoch; all data have a length."""
        ...


@runtime_checkable
class ValidatingLoader(RowLoader, Protocol):
    """One that also reads rows of a validation, by another loader."""

    def validated_rows(self, plan: LoaderPlan) -> Sequence[int]:
        """Return the rows of a validation, in the order in which they are read; no option shuffles them."""
        ...


GatheredAs = Literal["tensor", "tensors of a dictionary", "objects", "tensors of unequal widths"]
"""The last one: a row is a vector of as many numbers as `width_of_row` says, padded to the widest of its batch."""


def width_of_row(row: int) -> int:
    """Return how many numbers a row has in a gather of unequal widths: the widest are in the first batches."""
    return 5 - row % 5


@runtime_checkable
class MetricGather(Protocol):
    """Gathers what an evaluation computes for each row, from all processes."""

    def gathered_rows(self, plan: LoaderPlan, kind: GatheredAs) -> Sequence[Sequence[int]]:
        """Return the numbers of rows that each process has gathered at the end of one epoch."""
        ...


@runtime_checkable
class Collectives(Protocol):
    """Exchanges tensors between processes; values are by process."""

    def gathered(self, values: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
        """Return all values as each process gathers them; all processes give as many."""
        ...

    def reduced(
        self, values: Sequence[Sequence[float]], how: Literal["sum", "mean"]
    ) -> Sequence[Sequence[float]]:
        """Return what each process has of a reduction."""
        ...

    def padded(
        self, values: Sequence[Sequence[float]], *, fill: float, first: bool
    ) -> Sequence[Sequence[float]]:
        """Return each process's values padded to the longest of all, at the end, or at the beginning."""
        ...


@dataclass(frozen=True, kw_only=True)
class AccumulationPlan(Case):
    """How gradients of micro-batches are accumulated over an epoch that does not end with a whole step."""

    num_batches: int = 5
    """Of each process and epoch."""
    batch_size: int = 2
    accumulation: int = 2
    num_ranks: int = 2
    num_epochs: int = 2
    steps_at_the_end: bool = True
    """Whether the last batch of an epoch ends a step, whole or not."""
    max_norm: float | None = None
    """Norm to which gradients are clipped before a step."""
    max_value: float | None = None
    """Largest value of a gradient's element, to which it is clipped before a step."""
    split: bool = False
    """Whether a batch is that of all processes together, which each takes a part of."""
    schedule: Literal["step", "epoch"] = "step"
    """Whether the schedule advances with the optimizer, or at the end of an epoch."""
    local_steps: int = 0
    """Steps that each process takes alone before weights are averaged; 0: gradients are averaged in each step."""
    uneven: bool = False
    """Whether the first process alone has a last batch, and the others wait for it."""
    resumes_after: int = 0
    """Steps after which the state is saved and loaded into new objects; 0: never."""
    mixed: bool = False
    """Whether the forward pass is in bfloat16."""
    exchanges_each: bool = False
    """Whether processes exchange the gradients of every micro-batch, not of the last one of a step alone."""
    seed: int = 0

    def smaller(self) -> Iterator[AccumulationPlan]:
        """Yield the plan of one epoch."""
        if self.num_epochs > 1 and not self.resumes_after:
            yield replace(self, num_epochs=1)


class AccumulatedBatch(NamedTuple):
    """What is seen after one micro-batch."""

    rows: tuple[int, ...]
    stepped: bool
    """Whether the loop says that this micro-batch ends a step."""
    weights: tuple[float, ...]
    """After the step, where there is one."""
    rate: float
    """The learning rate after it."""
    norm: float | None
    """The norm before clipping that is returned, where gradients are clipped."""
    output_dtype: str
    """Of the model's outputs."""


@dataclass(frozen=True, kw_only=True)
class AccumulationSpec:
    """How the loop defines a step."""

    rate: float = 0.05
    """Of plain gradient descent."""
    rate_decay: float = 0.9
    """By which the schedule multiplies the rate each time it advances."""


@runtime_checkable
class AccumulatedTraining(Protocol):
    """Trains a linear model w @ x with targets y by the mean of squared errors, as `oracles.loops` says."""

    accumulation_spec: AccumulationSpec

    def accumulated(self, plan: AccumulationPlan) -> Sequence[Sequence[AccumulatedBatch]]:
        """Return what each process sees after each of its micro-batches, over all epochs."""
        ...
