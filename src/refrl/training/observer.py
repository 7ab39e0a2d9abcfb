"""What a run shows of itself while it runs: to a test, a guard, whoever wants more than the log.

The loops call an observer where things happen; it sees the objects that are trained on, not copies made for it.
`logger.observers` names those of a run; what an observer raises ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.config import GRPORunConfig, SFTRunConfig
from refrl.config.registry import Registry
from refrl.policy.base import LossFunction, Update
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


class PassedBatch(NamedTuple):
    """A micro-batch in the training pass."""

    batch: Batch
    logprobs_BT: Tensor
    """With its gradient."""
    global_valid_tokens: Tensor
    """What its share of the loss is divided by, where tokens are averaged: a scalar."""
    global_valid_seqs: Tensor
    """The same, where sequences are."""


class Observer:
    """Sees a run; every method does nothing here."""

    wants_gradients = False
    """Whether each step is to hold its updates; costs a copy of the gradients."""

    def started(self, session: Session) -> None:
        """The parts stand; nothing has been sampled or trained."""

    def synced(self, session: Session) -> None:
        """The generator's weights are those of the policy; not called where rollouts are asynchronous."""

    def passed(self, session: Session, micro: PassedBatch) -> None:
        """A micro-batch of a step went through the model that is trained; its loss is computed next."""

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


class Observers(Observer):
    """Several observers as one, called in their order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        """Put them together."""
        self._observers = observers
        self.wants_gradients = any(observer.wants_gradients for observer in observers)

    def started(self, session: Session) -> None:
        """Tell each."""
        for observer in self._observers:
            observer.started(session)

    def synced(self, session: Session) -> None:
        """Tell each."""
        for observer in self._observers:
            observer.synced(session)

    def passed(self, session: Session, micro: PassedBatch) -> None:
        """Tell each."""
        for observer in self._observers:
            observer.passed(session, micro)

    def trained(self, session: Session, step: TrainedStep) -> None:
        """Tell each."""
        for observer in self._observers:
            observer.trained(session, step)

    def tuned(self, session: Session, step: TunedStep) -> None:
        """Tell each."""
        for observer in self._observers:
            observer.tuned(session, step)

    def scored(self, session: Session, step: int, batch: Batch, loss: float) -> None:
        """Tell each."""
        for observer in self._observers:
            observer.scored(session, step, batch, loss)

    def validated(
        self, session: Session, step: int, rollouts: Rollouts, metrics: Mapping[str, float]
    ) -> None:
        """Tell each."""
        for observer in self._observers:
            observer.validated(session, step, rollouts, metrics)

    def saved(self, session: Session, step: int) -> None:
        """Tell each."""
        for observer in self._observers:
            observer.saved(session, step)

    def ended(self, session: Session) -> None:
        """Tell each."""
        for observer in self._observers:
            observer.ended(session)


OBSERVERS = Registry("observer", "refrl.observers", {})
"""What `logger.observers` may name beside import paths."""


def make_observer(config: GRPORunConfig | SFTRunConfig, given: Observer | None = None) -> Observer:
    """Return everything that watches a run: what its configuration names, then what the caller gives.

    Raises:
        ConfigError: a name is unknown, or its module cannot be imported.
    """
    named = [OBSERVERS.find(name, "logger.observers")(config) for name in config.logger.observers]
    observers = [*named, *([] if given is None else [given])]
    return observers[0] if len(observers) == 1 else Observers(observers)


def shown(session: Session, loss: LossFunction) -> LossFunction:
    """Return a loss that shows the observer every micro-batch before it is computed."""

    def observed(
        logprobs_BT: Tensor,
        entropy_BT: Tensor,
        batch: Batch,
        *,
        global_valid_tokens: Tensor,
        global_valid_seqs: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        session.observer.passed(
            session, PassedBatch(batch, logprobs_BT, global_valid_tokens, global_valid_seqs)
        )
        return loss(
            logprobs_BT,
            entropy_BT,
            batch,
            global_valid_tokens=global_valid_tokens,
            global_valid_seqs=global_valid_seqs,
        )

    return observed
