"""Contract of a training loop whose whole state a library saves and loads into new objects.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SavedLoopPlan(Case):
    """A loop with dropout, batch norms, moments, a schedule and shuffled rows."""

    num_epochs: int = 2
    num_batches: int = 4
    """Of each process and epoch."""
    saves_after: int = 0
    """Steps after which the state is saved, and the loop begins again from it in new objects; 0: never."""
    num_ranks: int = 1
    accumulation: int = 1
    tied: bool = False
    """Whether two layers of the model share their weight."""
    safe: bool = True
    """Whether weights are saved as safetensors."""
    num_models: int = 1
    """Models, each with its optimizer and schedule."""
    seed: int = 0

    def smaller(self) -> Iterator[SavedLoopPlan]:
        """Yield the plan of one model."""
        if self.num_models > 1:
            yield replace(self, num_models=1)


class SavedLoopStep(NamedTuple):
    """What is seen after one optimizer step."""

    rows: tuple[int, ...]
    """Of the step's micro-batches."""
    losses: tuple[float, ...]
    rates: tuple[float, ...]
    """Of each optimizer."""
    draws: tuple[float, ...]
    """Random numbers of Python, NumPy and torch, drawn after the step."""
    steps_counted: int
    """By an object of the caller that is saved with the rest."""


class SavedLoop(NamedTuple):
    """A process's run."""

    steps: Sequence[SavedLoopStep]
    """From the first one; after a resume from the one after the save."""
    tensors: Mapping[str, Tensor]
    """Parameters, buffers and moments at the end."""


@runtime_checkable
class SavedLoops(Protocol):
    """Runs the loop."""

    def saved_loop(self, plan: SavedLoopPlan) -> Sequence[SavedLoop]:
        """Return the run of each process, in the order of processes."""
        ...
