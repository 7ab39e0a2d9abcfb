"""The rollouts of a step: one generation batch, or as many as fill it with groups that have a signal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import torch

from refrl.algorithms.batching import TrainSample
from refrl.algorithms.filters import DynamicSampling, groups_with_spread
from refrl.config import GRPOConfig
from refrl.errors import TrainingError
from refrl.generation.base import SamplingParams
from refrl.rewards.verifiers import Verifier
from refrl.rollout.replay import ReplayBuffer
from refrl.rollout.sync import Rollouts, RolloutWorker, join_rollouts
from refrl.streams import random_stream
from refrl.tasks import Example, PromptSource
from refrl.timing import Timer

MAX_GENERATION_BATCHES = 10
"""Where the configuration names no other bound; NeMo RL's."""
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class GroupFate:
    """What became of a group that was offered to the trainer."""

    number: int
    """See `refrl.rollout.replay.Group`."""
    prompt_id: int
    fate: str
    """`trained`; `unused`: left at the end of the run; else what dropped it: `stale`, `too long`, `zero variance`."""
    weight_step: int
    step: int
    """Step that trained on it or dropped it; for `unused` the one after the last: no step took it."""


@dataclass(frozen=True)
class DrawnPrompt:
    """What dynamic sampling did with a prompt that it drew."""

    batch: int
    """Generation batch of the step that it was drawn for, from 0."""
    prompt_id: int
    fate: str
    """`trained`; `zero variance`: dropped; `surplus`: beyond what the step holds; `held`: not sampled, since the step
    holds its group already, or the batch samples it once."""
    rewards: Sequence[float] = ()
    """The verifier's, before any penalty on length, of its completions; none where it was not sampled."""


@dataclass(frozen=True)
class Collected:
    """What a step trains on, and how it was collected."""

    rollouts: Rollouts
    served: Sequence[Example]
    """Every prompt drawn, in order; with dynamic sampling more than are trained on."""
    counts: dict[str, float] = field(default_factory=dict)
    """What dynamic sampling did (nothing where it is off)."""
    discarded: Rollouts | None = None
    """Rows that it sampled and left out."""
    drawn: Sequence[DrawnPrompt] = ()
    """What it did with each prompt of `served`, in order."""
    fates: Sequence[GroupFate] = ()
    """Asynchronous rollouts: the groups that the step trains on, and those that its filters dropped."""

    def metrics(self) -> dict[str, float]:
        """Return those of the rows that are trained on, and the verifier's errors in all that were judged."""
        num_errors = sum(part.scores.num_errors for part in self._parts())
        return {**self.rollouts.metrics(), "num_verifier_errors": float(num_errors)}

    @property
    def verifier_error_share(self) -> float:
        """Share of the judged rows that the verifier could not judge."""
        failed = [one for part in self._parts() for one in part.scores.failed]
        return sum(failed) / len(failed) if failed else 0.0

    @property
    def first_error(self) -> str | None:
        """The first verifier error."""
        errors = (part.scores.first_error for part in self._parts())
        return next((error for error in errors if error is not None), None)

    def _parts(self) -> list[Rollouts]:
        return [self.rollouts] if self.discarded is None else [self.rollouts, self.discarded]


@dataclass(frozen=True)
class Collector:
    """Draws prompts, samples a group for each, rewards it; with dynamic sampling until the step is full."""

    prompts: PromptSource
    worker: RolloutWorker
    verifier: Verifier
    sampling: SamplingParams
    timer: Timer
    config: GRPOConfig

    def collect(self, step: int) -> Collected:
        """Sample and reward the rows of a step.

        Raises:
            TrainingError: dynamic sampling has not filled the step within its bound.
        """
        num_prompts = self.config.num_prompts_per_step
        num_drawn = math.ceil(num_prompts * self.config.batch_multiplier)
        served: list[Example] = []
        drawn = self._draw(num_drawn, served)
        if not self.config.use_dynamic_sampling:
            return Collected(self._generate(drawn, step, "rollout"), served)
        bound = self.config.dynamic_sampling_max_gen_batches or MAX_GENERATION_BATCHES
        sampling = DynamicSampling(num_groups=num_prompts, max_generation_batches=bound)
        parts: list[Rollouts] = []
        left_out: list[Rollouts] = []
        prompts: list[DrawnPrompt] = []
        full = False
        while not full:
            # The first batch of a step is sampled as it is without dynamic sampling.
            number = sampling.num_generation_batches
            purpose = f"rollout, batch {number}" if number else "rollout"
            rollouts = self._generate(self._unseen(sampling, drawn, served), step, purpose)
            samples = rollouts.verified_samples()
            num_recorded = len(prompts)
            num_kept = len(sampling.kept)
            try:
                full = sampling.add(samples)
            except RuntimeError as error:
                raise TrainingError(f"step {step}: {error}") from error
            added = {id(sample) for sample in sampling.kept[num_kept:]}
            kept = [id(sample) in added for sample in samples]
            parts.append(rollouts.rows([row for row, is_kept in enumerate(kept) if is_kept]))
            left_out.append(rollouts.rows([row for row, is_kept in enumerate(kept) if not is_kept]))
            prompts.extend(_fates(number, served[num_recorded:], samples, kept))
            if not full:
                drawn = self._draw(num_drawn, served)
        counts = {
            "dynamic_sampling_num_gen_batches": float(sampling.num_generation_batches),
            "dynamic_sampling_num_dropped_groups": float(sampling.num_dropped_groups),
            "dynamic_sampling_num_discarded_valid_samples": float(sampling.num_discarded_valid_samples),
        }
        return Collected(
            join_rollouts(parts), served, counts, discarded=join_rollouts(left_out), drawn=prompts
        )

    def _draw(self, num: int, served: list[Example]) -> list[Example]:
        with self.timer.time("data_processing"):
            drawn = self.prompts.draw(num)
        served.extend(drawn)
        return drawn

    def _unseen(
        self, sampling: DynamicSampling, drawn: Sequence[Example], served: list[Example]
    ) -> list[Example]:
        """Return prompts that the step does not hold, each once: rows of one prompt are one group.

        Raises:
            TrainingError: it holds every prompt there is.
        """
        held = {sample.group_id for sample in sampling.kept}
        if len(held) >= self.prompts.num_prompts:
            raise TrainingError(
                f"grpo.use_dynamic_sampling: all {len(held)} prompts are in the step, and "
                f"grpo.num_prompts_per_step={sampling.num_groups} are needed: lower it, or give more prompts"
            )
        while True:
            fresh = {example.prompt_id: example for example in drawn if example.prompt_id not in held}
            if fresh:
                return list(fresh.values())
            drawn = self._draw(sampling.num_groups, served)

    def _generate(self, prompts: Sequence[Example], step: int, purpose: str) -> Rollouts:
        """Sample a group for each prompt, reward it, and take off the penalty on length."""
        examples = [prompt for prompt in prompts for _ in range(self.config.num_generations_per_prompt)]
        with self.timer.time("generation"):
            stream = random_stream(self.config.seed, purpose, step)
            completions = self.worker.sample(examples, self.sampling, stream)
        with self.timer.time("reward_calculation"):
            rollouts = self.worker.reward(examples, completions, self.verifier)
            return rollouts.penalised(self.config.reward_shaping, self.sampling.max_new_tokens)


def _fates(
    batch: int, drawn: Sequence[Example], samples: Sequence[TrainSample], kept: Sequence[bool]
) -> Iterator[DrawnPrompt]:
    """Yield what became of each prompt that was drawn for a batch; `kept` says which samples are trained on."""
    rewards: dict[int, list[float]] = {}
    for sample in samples:
        rewards.setdefault(sample.group_id, []).append(sample.reward)
    ids, of_rows = [sample.group_id for sample in samples], [sample.reward for sample in samples]
    spread_B = groups_with_spread(torch.tensor(of_rows).double(), torch.tensor(ids)).tolist()
    varied = {one for one, has_signal in zip(ids, spread_B, strict=True) if has_signal}
    trained = {one for one, is_kept in zip(ids, kept, strict=True) if is_kept}
    for example in drawn:
        one = example.prompt_id
        fate = "trained" if one in trained else "surplus" if one in varied else "zero variance"
        group = rewards.pop(one, None)  # a second draw of the prompt is not sampled
        yield DrawnPrompt(batch, one, "held") if group is None else DrawnPrompt(batch, one, fate, group)


class RolloutSource(Protocol):
    """The source of a step's rollouts: sampled for the step, or asynchronously before it."""

    def consume(self, step: int, train: Callable[[Rollouts], ResultT]) -> tuple[Collected, ResultT]:
        """Train once on the rollouts of a step, each of which is served once; return them and the result of `train`."""
        ...

    def trained(self, step: int) -> None:
        """Called after each step has been logged."""
        ...


class SyncCollector:
    """A `RolloutSource` that samples a step's rollouts on demand."""

    def __init__(
        self,
        collector: Collector,
        buffer: ReplayBuffer,
        *,
        prepare: Callable[[], Mapping[str, float]],
        version: Callable[[], int],
    ) -> None:
        """Combine the parts.

        Args:
            collector: collects one batch.
            buffer: through which it reaches the trainer.
            prepare: brings the generator's weights up to date, and returns what there is to log of it.
            version: returns the optimizer steps that the policy's weights have seen.
        """
        self._collector, self._buffer = collector, buffer
        self._prepare, self._version = prepare, version

    def consume(self, step: int, train: Callable[[Rollouts], ResultT]) -> tuple[Collected, ResultT]:
        """See `RolloutSource`."""
        synced = self._prepare()
        collected = self._collector.collect(step)
        self._buffer.add(collected.rollouts)
        rollouts, result = self._buffer.consume(
            lambda groups, rows: (rows, train(rows)), current_weight_version=self._version()
        )
        return replace(collected, rollouts=rollouts, counts={**synced, **collected.counts}), result

    def trained(self, step: int) -> None:
        """See `RolloutSource`."""
