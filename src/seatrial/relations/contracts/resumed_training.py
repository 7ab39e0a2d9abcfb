"""Contract of a trainer that is ended after a checkpoint and begins again from it: its state, its examples, its log.

Part of `seatrial.relations.contracts`, which lists every component. The whole loop of a stack that samples: `resume`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A short training run, and where it is ended; a made input."""

    num_steps: int
    """Optimizer steps of the whole run."""
    ends_after: tuple[int, ...] = ()
    """Steps after whose checkpoint the run is ended, rising; what begins again goes on from that checkpoint."""
    loses_a_step: bool = False
    """Whether it is ended only after the step behind the checkpoint was taken and logged, which is then taken again."""
    num_examples: int = 12
    batch_size: int = 2
    """Examples of an optimizer step."""
    num_micro_batches: int = 1
    schedule: Literal["constant", "linear"] = "constant"
    """`linear` falls from the first step's rate to 0, which it would reach after the last step."""
    dropout: bool = False
    seed: int = 0

    def smaller(self) -> Iterator[TrainingPlan]:
        """Yield plans that are ended once."""
        for step in self.ends_after if len(self.ends_after) > 1 else ():
            yield replace(self, ends_after=(step,))

    def describe(self) -> Mapping[str, Any]:
        """Return the plan as JSON values."""
        return asdict(self)


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
    """Whether every epoch serves each example once; else the order is the stack's own affair."""

    def train_as_planned(self, plan: TrainingPlan) -> TrainedRun:
        """Run the plan: with several parts, each has an object, or a process, of its own.

        Raises:
            NotServed: the stack cannot be ended so, or has no such option, by design.
        """
        ...
