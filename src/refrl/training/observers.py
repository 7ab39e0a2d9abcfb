"""The observers of a run, combined: tests, guards, or a custom class.

`logger.observers` names them; an exception that one of them raises stops the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.config import GRPORunConfig, SFTRunConfig
from refrl.config.registry import Registry
from refrl.policy.base import LossFunction
from refrl.rollout.sync import Rollouts
from refrl.training.observed import PassedBatch, TrainedStep, TunedStep
from refrl.training.session import Observer, Session


class Observers(Observer):
    """Several observers as one; each event is passed to all of them in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        """Combine observers."""
        self._observers = observers
        self.needs_gradients = any(observer.needs_gradients for observer in observers)

    def started(self, session: Session) -> None:
        """Notify each observer."""
        for observer in self._observers:
            observer.started(session)

    def synced(self, session: Session) -> None:
        """Notify each observer."""
        for observer in self._observers:
            observer.synced(session)

    def passed(self, session: Session, micro: PassedBatch) -> None:
        """Notify each observer."""
        for observer in self._observers:
            observer.passed(session, micro)

    def trained(self, session: Session, step: TrainedStep) -> None:
        """Notify each observer."""
        for observer in self._observers:
            observer.trained(session, step)

    def tuned(self, session: Session, step: TunedStep) -> None:
        """Notify each observer."""
        for observer in self._observers:
            observer.tuned(session, step)

    def scored(self, session: Session, step: int, batch: Batch, loss: float) -> None:
        """Notify each observer."""
        for observer in self._observers:
            observer.scored(session, step, batch, loss)

    def validated(
        self, session: Session, step: int, rollouts: Rollouts, metrics: Mapping[str, float]
    ) -> None:
        """Notify each observer."""
        for observer in self._observers:
            observer.validated(session, step, rollouts, metrics)

    def saved(self, session: Session, step: int) -> None:
        """Notify each observer."""
        for observer in self._observers:
            observer.saved(session, step)

    def ended(self, session: Session) -> None:
        """Notify each observer."""
        for observer in self._observers:
            observer.ended(session)


OBSERVERS = Registry("observer", "refrl.observers", {})
"""What `logger.observers` may name in addition to import paths."""


def make_observer(config: GRPORunConfig | SFTRunConfig, given: Observer | None = None) -> Observer:
    """Return all observers of a run: those that its configuration names, then the caller's.

    Raises:
        ConfigError: a name is unknown, or its module cannot be imported.
    """
    named = [OBSERVERS.find(name, "logger.observers")(config) for name in config.logger.observers]
    observers = [*named, *([] if given is None else [given])]
    return observers[0] if len(observers) == 1 else Observers(observers)


def shown(session: Session, loss: LossFunction) -> LossFunction:
    """Return a loss that passes every micro-batch to the observer before it is computed."""

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
