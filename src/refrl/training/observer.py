"""What a run shows of itself while it runs: to a test, a guard, whoever wants more than the log.

The loops call an observer where things happen; it sees the objects that are trained on, not copies made for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from refrl.algorithms.batching import Batch
from refrl.policy.base import Update
from refrl.rollout.collect import GroupFate
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example

if TYPE_CHECKING:
    from refrl.training.session import Session


@dataclass(frozen=True, kw_only=True)
class TrainedStep:
    """One step of a GRPO run, after it was logged."""

    step: int
    served: Sequence[Example]
    """Every prompt drawn for it, in order."""
    rollouts: Rollouts
    discarded: Rollouts | None
    """Rows that dynamic sampling sampled and left out; None where there are none."""
    fates: Sequence[GroupFate]
    """Asynchronous rollouts: groups that it trained on, and groups that were too old for it."""
    batch: Batch
    """As it was trained on: log-probabilities, advantages and masks included."""
    updates: Sequence[Update]
    """One per optimizer step; empty where the observer does not want gradients."""
    metrics: Mapping[str, float]
    """Scalars logged under `train/`."""


@dataclass(frozen=True, kw_only=True)
class TunedStep:
    """One step of an SFT run, after it was logged."""

    step: int
    batch: Batch
    """Prompts with their answers, as they were trained on."""
    updates: Sequence[Update]
    """One per optimizer step; empty where the observer does not want gradients."""
    metrics: Mapping[str, float]
    """Scalars logged under `train/`."""


class Observer:
    """Sees a run; every method does nothing here."""

    wants_gradients = False
    """Whether each step is to hold its updates; costs a copy of the gradients."""

    def started(self, session: Session) -> None:
        """The parts stand; nothing has been sampled or trained."""

    def trained(self, session: Session, step: TrainedStep) -> None:
        """A step is taken and logged."""

    def tuned(self, session: Session, step: TunedStep) -> None:
        """A step of supervised fine-tuning is taken and logged."""

    def scored(self, session: Session, step: int, batch: Batch, loss: float) -> None:
        """The loss of held-out answers is computed and logged."""

    def validated(
        self, session: Session, step: int, rollouts: Rollouts, metrics: Mapping[str, float]
    ) -> None:
        """A validation is done."""

    def saved(self, session: Session, step: int) -> None:
        """The state after a step is copied, and being written."""

    def ended(self, session: Session) -> None:
        """All steps are taken."""
