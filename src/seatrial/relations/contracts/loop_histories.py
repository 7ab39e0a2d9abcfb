"""Contract of a training loop that makes any sequence of a library's public calls, in one process or several.

Part of `seatrial.relations.contracts`, which lists every component. The model, the rows and the rate are those of
`contracts.loops.AccumulatedTraining`; gradient descent has a momentum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case

RATE, RATE_DECAY, MOMENTUM = 0.05, 0.9, 0.5
CallName = Literal["train", "evaluate", "save", "load", "renew", "split", "trigger"]


class LoopCall(NamedTuple):
    """A call; a number that its name does not need is 0."""

    name: CallName
    epoch: int = 0
    skip: int = 0
    """Batches of the epoch that are left out, by the library's call for it."""
    stop: int = 0
    """Batches of the epoch, with those left out, after which the loop is left; 0: it reads all."""
    evaluates_after: int = 0
    """Batches of the epoch, with those left out, after which an evaluation is within the loop; 0: none."""
    reads: int = 0
    """Batches of the evaluation after which its loop is left; 0: it reads all."""
    max_norm: float = 0.0
    """Norm to which gradients are clipped; 0: they are not."""
    number: int = 0
    """Of the saved state, of the items that are split, or of the process that sets the trigger."""
    padded: bool = False
    """Whether parts of a split are padded to one size."""


@dataclass(frozen=True, kw_only=True)
class LoopHistory(Case):
    """The calls of a loop."""

    calls: tuple[LoopCall, ...]
    num_ranks: int = 1
    num_batches: int = 5
    """Of an epoch of a process; all are whole."""
    batch_size: int = 2
    num_evaluated: int = 7
    """Rows of an evaluation, which may not divide."""
    accumulation: int = 2
    split: bool = False
    """Whether a loader is given batches for all processes together."""
    turned: int = 0
    """By how many places the arguments are turned with which all is prepared."""
    seed: int = 0

    def smaller(self) -> Iterator[LoopHistory]:
        """Yield the history without its last call."""
        if len(self.calls) > 1:
            yield replace(self, calls=self.calls[:-1])

    def describe(self) -> Mapping[str, Any]:
        """Return the calls as lists."""
        return {**super().describe(), "calls": [list(call) for call in self.calls]}


class MicroBatch(NamedTuple):
    """What is seen after one micro-batch."""

    rows: tuple[int, ...]
    stepped: bool
    weights: tuple[float, ...]
    rate: float
    norm: float | None
    """Before gradients are clipped; None where there is no step, or none that clips."""


class SeenCall(NamedTuple):
    """What a process sees of a call."""

    batches: Sequence[MicroBatch] = ()
    rows: Sequence[int] = ()
    """Gathered for metrics, or of its part of a split."""
    outputs: Sequence[float] = ()
    """Of the rows that are gathered."""
    weights: Sequence[float] = ()
    """After the call."""
    rate: float = 0.0
    draw: float = 0.0
    """A random number of torch, drawn after the state is saved or loaded."""
    triggers: Sequence[bool] = ()
    """Of a check before the trigger is set, and of two after it."""


@runtime_checkable
class LoopHistories(Protocol):
    """Makes the calls."""

    def performed(self, history: LoopHistory) -> Sequence[Sequence[SeenCall]]:
        """Return what each process sees of each call.

        Training rows are shuffled, in an order that is the epoch's own and the same for the whole history.
        """
        ...
