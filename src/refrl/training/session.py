"""The parts of a run, and the interface of its observers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refrl.algorithms.batching import Batch
from refrl.checkpointing.attempts import Attempt
from refrl.checkpointing.checkpointer import Checkpointer
from refrl.config import GRPORunConfig, SFTRunConfig
from refrl.config.registry import Registry
from refrl.distributed import World
from refrl.generation.base import Generator, SamplingParams
from refrl.logging import RunLogger
from refrl.models.prompts import PromptEncoder
from refrl.policy.base import LossFunction, Policy, Update
from refrl.rewards.verifiers import Verifier
from refrl.rollout.collect import GroupFate, RolloutSource
from refrl.rollout.progress import RolloutProgress
from refrl.rollout.sync import Rollouts, RolloutWorker
from refrl.tasks import Example, PromptSource
from refrl.timing import Timer
from refrl.weight_sync.base import WeightSync


@dataclass(frozen=True, kw_only=True)
class TrainedStep:
    """One GRPO step, after it was logged."""

    step: int
    served: Sequence[Example]
    """Every prompt drawn for the step, in order."""
    rollouts: Rollouts
    discarded: Rollouts | None
    """Rows that dynamic sampling sampled and discarded; None if there are none."""
    fates: Sequence[GroupFate]
    """Asynchronous rollouts: the groups that the step trained on, and those that were too old for it."""
    batch: Batch
    """The batch as trained on, with log-probabilities, advantages and masks."""
    updates: Sequence[Update]
    """One per optimizer step; empty if the observer does not need gradients."""
    metrics: Mapping[str, float]
    """Scalars logged under `train/`."""


@dataclass(frozen=True, kw_only=True)
class TunedStep:
    """One SFT step, after it was logged."""

    step: int
    batch: Batch
    """Prompts with their answers, as trained on."""
    updates: Sequence[Update]
    """One per optimizer step; empty if the observer does not need gradients."""
    metrics: Mapping[str, float]
    """Scalars logged under `train/`."""


class PassedBatch(NamedTuple):
    """A micro-batch in the training pass."""

    batch: Batch
    logprobs_BT: Tensor
    """Attached to the graph."""
    entropy_BT: Tensor
    """Entropy of the distribution at each token, in nats; attached to the graph."""
    global_valid_tokens: Tensor
    """Divisor of the loss if it averages over tokens: a scalar."""
    global_valid_seqs: Tensor
    """Divisor of the loss if it averages over sequences: a scalar."""


class Observer:
    """The interface of an observer; every method does nothing here."""

    needs_gradients = False
    """Whether `TrainedStep.updates` and `TunedStep.updates` are filled; costs a copy of the gradients."""

    def started(self, session: Session) -> None:
        """Called when all parts are built, before anything is sampled or trained."""

    def synced(self, session: Session) -> None:
        """Called when the generator has the policy's weights; not called with asynchronous rollouts."""

    def passed(self, session: Session, micro: PassedBatch) -> None:
        """Called after a micro-batch's forward pass in training, before its loss is computed."""

    def trained(self, session: Session, step: TrainedStep) -> None:
        """Called after each GRPO step has been logged."""

    def tuned(self, session: Session, step: TunedStep) -> None:
        """Called after each step of supervised fine-tuning has been logged."""

    def scored(self, session: Session, step: int, batch: Batch, loss: float) -> None:
        """Called after the loss of the held-out answers has been logged."""

    def validated(
        self, session: Session, step: int, rollouts: Rollouts, metrics: Mapping[str, float]
    ) -> None:
        """Called after each validation."""

    def saved(self, session: Session, step: int) -> None:
        """Called when the state after a step has been copied; it may still be being written."""

    def ended(self, session: Session) -> None:
        """Called after the last step."""


@dataclass(frozen=True)
class Session:
    """The parts of a run."""

    policy: Policy
    generator: Generator
    """Of this process; with asynchronous rollouts the replicas sample instead."""
    weight_sync: WeightSync
    worker: RolloutWorker
    tokenizer: PreTrainedTokenizerBase
    encoder: PromptEncoder
    sampling: SamplingParams
    prompts: PromptSource
    train_examples: Sequence[Example]
    """The examples that `prompts` draws from."""
    validation: Sequence[Example]
    verifier: Verifier
    logger: RunLogger
    timer: Timer
    final: Path | None
    """Where the first process exports the model at the end; None if the export is off."""
    attempt: Attempt
    checkpointer: Checkpointer
    checkpoint_metric: str | None
    """Tag of the metric that ranks checkpoints, as it is logged."""
    world: World
    observer: Observer
    progress: RolloutProgress | None = None
    """State of asynchronous rollouts; None if there are none."""
    collector: RolloutSource | None = None
    """The source of a GRPO step's rollouts; None in a loop that samples nothing."""

    def save(self, step: int, *, finished: bool) -> None:
        """Save a checkpoint after a step.

        Args:
            step: the last completed step.
            finished: whether the loop stops here before its configured last step.
        """
        tag = self.checkpoint_metric
        with self.timer.time("checkpointing"):
            metric = None if tag is None else self.logger.value_at(tag, step)
            self.checkpointer.save(step, metric, finished=finished)
        self.logger.log(self.timer.take(), step, "timing/train")
        self.observer.saved(self, step)

    def prepare_for_generation(self) -> Mapping[str, float]:
        """Free what only training needs, and update the generator's weights; called before every sampling.

        Returns:
            Metrics of the weight sync to log.
        """
        with self.timer.time("prepare_for_generation/total"):
            self.policy.free_gradients()
            with self.timer.time("prepare_for_generation/transfer_and_update_weights"):
                figures = self.weight_sync.sync()
        self.observer.synced(self)
        return figures


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
            session, PassedBatch(batch, logprobs_BT, entropy_BT, global_valid_tokens, global_valid_seqs)
        )
        return loss(
            logprobs_BT,
            entropy_BT,
            batch,
            global_valid_tokens=global_valid_tokens,
            global_valid_seqs=global_valid_seqs,
        )

    return observed
