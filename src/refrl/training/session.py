"""The parts of a run, and what may watch them: an observer is shown the parts, which know who observes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from refrl.algorithms.batching import Batch
from refrl.checkpointing.attempts import Attempt
from refrl.checkpointing.checkpointer import Checkpointer
from refrl.distributed import World
from refrl.generation.base import Generator, SamplingParams
from refrl.logging import RunLogger
from refrl.models.prompts import PromptEncoder
from refrl.policy.base import Policy
from refrl.rewards.verifiers import Verifier
from refrl.rollout.collect import RolloutSource
from refrl.rollout.progress import RolloutProgress
from refrl.rollout.sync import Rollouts, RolloutWorker
from refrl.tasks import Example, PromptSource
from refrl.timing import Timer
from refrl.training.observed import PassedBatch, TrainedStep, TunedStep
from refrl.weight_sync.base import WeightSync


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


@dataclass(frozen=True)
class Session:
    """The parts of a run."""

    policy: Policy
    generator: Generator
    """Of this process; where rollouts are asynchronous the replicas sample in its place."""
    weight_sync: WeightSync
    worker: RolloutWorker
    tokenizer: PreTrainedTokenizerBase
    encoder: PromptEncoder
    sampling: SamplingParams
    prompts: PromptSource
    train_examples: Sequence[Example]
    """What `prompts` draws from."""
    validation: Sequence[Example]
    verifier: Verifier
    logger: RunLogger
    timer: Timer
    final: Path | None
    """Where the model is exported at the end, by the first process; None where it is not."""
    attempt: Attempt
    checkpointer: Checkpointer
    checkpoint_metric: str | None
    """Tag of the metric that tells better checkpoints, as it is logged."""
    world: World
    observer: Observer
    progress: RolloutProgress | None = None
    """Where asynchronous rollouts stand; None where there are none."""
    collector: RolloutSource | None = None
    """Where a GRPO step gets its rollouts; None in a loop that samples nothing."""

    def save(self, step: int, *, finished: bool) -> None:
        """Save a checkpoint after a step.

        Args:
            step: the last one taken.
            finished: whether the loop ends with it, though it was to take more.
        """
        tag = self.checkpoint_metric
        with self.timer.time("checkpointing"):
            metric = None if tag is None else self.logger.value_at(tag, step)
            self.checkpointer.save(step, metric, finished=finished)
        self.logger.log(self.timer.take(), step, "timing/train")
        self.observer.saved(self, step)

    def prepare_for_generation(self) -> Mapping[str, float]:
        """Free what only training needs, and bring the generator's weights up to date: before every sampling.

        Returns:
            What there is to log of the weights' way.
        """
        with self.timer.time("prepare_for_generation/total"):
            self.policy.free_gradients()
            with self.timer.time("prepare_for_generation/transfer_and_update_weights"):
                figures = self.weight_sync.sync()
        self.observer.synced(self)
        return figures
