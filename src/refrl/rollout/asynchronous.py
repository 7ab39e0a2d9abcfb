"""Asynchronous rollouts: a thread collects what later steps train on, while this one trains.

A batch is admitted as soon as no step could find it too old: with the weights of step v, batches up to step
v + 1 + `max_trajectory_age_steps`. Without in-flight updates, weights change when every admitted batch is there: the
version of every row depends on the configuration alone, and a run with the same seed is the same run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from refrl.algorithms.schedule import Schedule
from refrl.config import GRPOConfig
from refrl.errors import TrainingError
from refrl.generation.pooled import PooledSampler
from refrl.rollout.collect import Collected, Collector, Fate, GroupFate
from refrl.rollout.replay import Group, ReplayBuffer, split_groups
from refrl.rollout.sync import join_rollouts
from refrl.timing import Timer


class AsyncCollector:
    """Collects rollouts beside the training; use it as a context manager."""

    def __init__(
        self,
        collector: Collector,
        sampler: PooledSampler,
        schedule: Schedule,
        *,
        timer: Timer,
        version: Callable[[], int],
    ) -> None:
        """Put the parts together; nothing is sampled before the block is entered.

        Args:
            collector: collects one batch; it samples with `sampler`, and only here.
            sampler: has the weights that the policy has now.
            schedule: how old a group may be, and after which steps weights are synced.
            timer: of the trainer.
            version: returns the optimizer steps that the policy's weights have seen.
        """
        self._collector, self._sampler, self._schedule = collector, sampler, schedule
        self._timer, self._version = timer, version
        config: GRPOConfig = collector.config
        self._config = config
        self._num_prompts = config.num_prompts_per_step
        # A batch that fills the gap of a dropped group may begin when the window is all but full.
        self.buffer = ReplayBuffer(schedule, capacity=(schedule.max_staleness + 2) * self._num_prompts)
        self._changed = threading.Condition()
        self._trained_steps = self._synced_steps = 0
        self._step_of_version = {version(): 0}
        self._num_batches = self._num_offered = self._num_dropped = 0
        self._is_collecting = self._is_closing = False
        self._origins: dict[int, tuple[Collected, Mapping[str, float]]] = {}
        """A batch and the seconds of its phases, by the number of its first group."""
        self._dropped: list[GroupFate] = []
        self._reported: set[str] = set()
        """Lost replicas that the console was told of."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="refrl-collector")
        self._producer: Future[None] | None = None

    def __enter__(self) -> Self:
        """Begin to collect."""
        self._producer = self._worker.submit(self._produce)
        self._producer.add_done_callback(self._notify)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Collect nothing more; the batch that is being collected is given up with the sampler."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._sampler.close()
        self._worker.shutdown(wait=True)

    def collect(self, step: int) -> Collected:
        """Return the rollouts of a step; wait for them where they are not there.

        Raises:
            TrainingError: nothing arrived for `grpo.async_grpo.stall_timeout_seconds`.
            Exception: whatever ended the collecting thread.
        """
        with self._timer.time("exposed_generation"), self._changed:
            groups = self._take(step)
            num_left = len(self.buffer)
            dropped, self._dropped = self._dropped, []
            self._changed.notify_all()
        self._report_losses(step)
        origins = [self._origins.pop(group.number) for group in groups if group.number in self._origins]
        ages = [step - 1 - group.weight_step for group in groups]
        counts: dict[str, float] = {}
        for origin, seconds in origins:
            for phase, value in seconds.items():
                self._timer.add(phase, value)
            for name, value in origin.counts.items():
                counts[name] = counts.get(name, 0.0) + value
        counts |= {
            "buffer_size": float(num_left),
            "avg_trajectory_age": sum(ages) / len(ages),
            "max_trajectory_age": float(max(ages)),
            "num_stale_groups": float(len(dropped)),
            "num_lost_replicas": float(len(self._sampler.losses)),
        }
        left_out = [origin.discarded for origin, _ in origins if origin.discarded is not None]
        return Collected(
            rollouts=join_rollouts([group.rollouts for group in groups]),
            served=[example for origin, _ in origins for example in origin.served],
            counts=counts,
            discarded=join_rollouts(left_out) if left_out else None,
            fates=[*dropped, *(self._fate(group, "trained", step) for group in groups)],
        )

    def trained(self, step: int) -> None:
        """Bring the replicas' weights up to date where the schedule says so; call it after each step.

        Raises:
            GenerationError: every replica is lost.
            Exception: whatever ended the collecting thread.
        """
        with self._changed:
            self._trained_steps = step
        if step >= self._config.max_num_steps or not self._schedule.syncs_sampler(step):
            return
        if not self._config.async_grpo.in_flight_weight_updates:
            self._wait_until_collected()
        with self._changed:
            self._step_of_version[self._version()] = step
        with self._timer.time("prepare_for_generation/total"):
            self._sampler.update_weights()
        with self._changed:
            self._synced_steps = step
            self._changed.notify_all()

    def unused(self) -> list[GroupFate]:
        """Return what the buffer still holds."""
        with self._changed:
            return [self._fate(group, "unused", self._trained_steps + 1) for group in self.buffer.remaining()]

    def _produce(self) -> None:
        while self._admitted():
            self._offer(self._collector.collect(self._num_batches))

    def _admitted(self) -> bool:
        """Wait until the next batch may be sampled; return whether it is still wanted."""
        with self._changed:
            self._is_collecting = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closing or self._has_room())
            self._is_collecting = True
            self._num_batches += 1
            return not self._is_closing

    def _has_room(self) -> bool:
        """Return whether a batch sampled now can be trained on in time, and by a step of this run."""
        last_step = min(self._synced_steps + 1 + self._schedule.max_staleness, self._config.max_num_steps)
        return self._num_batches * self._num_prompts - self._num_dropped < last_step * self._num_prompts

    def _offer(self, collected: Collected) -> None:
        """Give the trainer the groups of a batch."""
        size = self._config.num_generations_per_prompt
        with self._changed:
            for place, rollouts in enumerate(split_groups(collected.rollouts, size)):
                steps = [self._step_of_version[row.weight_version] for row in rollouts.completions]
                group = Group(number=self._num_offered, weight_step=min(steps), rollouts=rollouts)
                self._num_offered += 1
                if place == 0:
                    self._origins[group.number] = (collected, self._collector.timer.take())
                self._add(group)
            self._changed.notify_all()

    def _add(self, group: Group) -> None:
        """Add a group, when there is room for it.

        Raises:
            TrainingError: the number was there before: a group would be trained on twice.
        """
        while True:
            added = self.buffer.add(group, trained_steps=self._trained_steps)
            if added == "duplicate":
                raise TrainingError(f"group {group.number} came twice into the replay buffer")
            if added == "stale":
                self._drop([group])
            if added != "full" or self._is_closing:
                return
            self._changed.wait()

    def _take(self, step: int) -> list[Group]:
        """Return the groups of a step, when they are there."""
        assert self._producer is not None
        while True:
            self._drop(self.buffer.evict(trained_steps=self._trained_steps))
            groups = self.buffer.take(self._num_prompts, trained_steps=self._trained_steps)
            if groups is not None:
                return groups
            self._check_producer(step)
            num_offered = self._num_offered
            if not self._changed.wait(self._config.async_grpo.stall_timeout_seconds):
                raise TrainingError(
                    f"step {step}: no rollouts arrived in {self._config.async_grpo.stall_timeout_seconds:g} s "
                    f"({len(self.buffer)} of {self._num_prompts} groups are there, {num_offered} came so far): the "
                    "generation replicas hang, or grpo.async_grpo.stall_timeout_seconds is too short for a batch"
                )

    def _wait_until_collected(self) -> None:
        """Wait until every batch that the weights of now are to sample is there."""
        with self._changed:
            while self._is_collecting or self._has_room():
                self._check_producer(self._trained_steps + 1)
                self._changed.wait()

    def _check_producer(self, step: int) -> None:
        """Raise what ended the collecting thread, if it ended."""
        assert self._producer is not None
        if self._producer.done():
            self._producer.result()
            raise TrainingError(f"step {step}: the collector ended before the run did")

    def _report_losses(self, step: int) -> None:
        losses = self._sampler.losses
        for name in losses.keys() - self._reported:
            print(f"step {step}  goes on without a replica: {losses[name]}", flush=True)
        self._reported |= losses.keys()

    def _drop(self, groups: Sequence[Group]) -> None:
        self._num_dropped += len(groups)
        self._dropped += [self._fate(group, "stale", self._trained_steps + 1) for group in groups]
        if groups:
            self._changed.notify_all()

    def _fate(self, group: Group, fate: Fate, step: int) -> GroupFate:
        prompt_id = group.rollouts.examples[0].prompt_id
        return GroupFate(group.number, prompt_id, fate, group.weight_step, step)

    def _notify(self, producer: Future[None]) -> None:
        with self._changed:
            self._changed.notify_all()
