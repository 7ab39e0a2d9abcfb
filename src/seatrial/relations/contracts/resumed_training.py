"""Contract of a trainer that is stopped after a checkpoint and resumed from it: its state, its examples, its log.

Part of `seatrial.relations.contracts`, which lists every component. The whole loop of a stack that samples: `resume`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TrainingPlan(Case):
    """A short training run and where it is stopped; a made input."""

    num_steps: int
    """Optimizer steps of the whole run."""
    ends_after: tuple[int, ...] = ()
    """Steps after whose checkpoint the run is stopped, ascending; it resumes from that checkpoint."""
    loses_a_step: bool = False
    """Whether it stops one step after the checkpoint, when that step is logged; the step is then repeated."""
    num_examples: int = 12
    batch_size: int = 2
    """Examples of an optimizer step."""
    num_micro_batches: int = 1
    schedule: Literal["constant", "linear"] = "constant"
    """`linear` falls from the first step's rate to 0, which it would reach after the last step."""
    dropout: bool = False
    seed: int = 0

    def smaller(self) -> Iterator[TrainingPlan]:
        """Yield plans that stop once."""
        for step in self.ends_after if len(self.ends_after) > 1 else ():
            yield replace(self, ends_after=(step,))


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """What a run has at its end, all its parts together."""

    weights: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    """Moments and counters, by a name for each tensor."""
    served: Mapping[int, Sequence[int]]
    """Numbers of the examples of each step, from 1, as the steps that the weights have seen took them."""
    rates: Mapping[int, float]
    """Learning rate of each step."""
    log: Sequence[tuple[str, int, float]]
    """(name, step, value) of every logged scalar, as the log holds them; what depends on the clock is left out."""


@runtime_checkable
class ResumedTraining(Protocol):
    """Short runs of the stack's own trainer with checkpoints, on the adapter's own tiny model."""

    has_dropout: bool
    """Whether the model has dropout that a plan can switch on."""
    serves_every_example: bool
    """Whether every epoch serves each example once; otherwise any order is allowed."""

    def train_as_planned(self, plan: TrainingPlan) -> TrainedRun:
        """Run the plan: each of several parts has a separate object or process.

        Raises:
            NotServed: the stack cannot be stopped this way, or has no such option, by design.
        """
        ...
