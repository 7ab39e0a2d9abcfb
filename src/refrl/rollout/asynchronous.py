"""Asynchronous rollouts: a thread collects rollouts for later steps while this one trains.

A batch is admitted as soon as no step could find it too old: with the weights of step v, batches up to step
v + 1 + `max_trajectory_age_steps`. Without in-flight updates, weights change once every admitted batch has arrived: the
version of every row depends on the configuration alone, and a run with the same seed is the same run.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from refrl.algorithms.schedule import Schedule
from refrl.config import GRPOConfig
from refrl.data_plane import PartitionFullError
from refrl.errors import TrainingError
from refrl.generation.pooled import PooledSampler
from refrl.rollout.collect import MAX_GENERATION_BATCHES, Collected, Collector, GroupFate, ResultT
from refrl.rollout.progress import Origin, RolloutProgress
from refrl.rollout.replay import Group, ReplayBuffer
from refrl.rollout.sync import Rollouts, join_rollouts
from refrl.timing import Timer

LOOK_AGAIN_S = 0.05
"""Interval of polling for space in the store, and for what a step waits for."""


class AsyncCollector:
    """A `refrl.rollout.collect.RolloutSource` that collects while the policy trains; use it as a context manager."""

    def __init__(
        self,
        collector: Collector,
        sampler: PooledSampler,
        buffer: ReplayBuffer,
        schedule: Schedule,
        *,
        timer: Timer,
        version: Callable[[], int],
        progress: RolloutProgress | None = None,
    ) -> None:
        """Combine the parts; nothing is sampled before the block is entered.

        Args:
            collector: collects one batch with `sampler`, which it alone uses.
            sampler: has the policy's current weights.
            buffer: passes groups to the trainer; its filters limit their age.
            schedule: how old a group may be, and after which steps weights are synced.
            timer: of the trainer.
            version: returns the optimizer steps that the policy's weights have seen.
            progress: the state to resume from, updated after each step; None: the run keeps no state.
        """
        self._collector, self._sampler, self._schedule = collector, sampler, schedule
        self._timer, self._version = timer, version
        config: GRPOConfig = collector.config
        self._config = config
        self._num_prompts = config.num_prompts_per_step
        self.buffer = buffer
        self._changed = threading.Condition()
        self._trained_steps = self._synced_steps = 0
        self._step_of_version = {version(): 0}
        self._num_batches = self._num_dropped = 0
        self._arrived = time.monotonic()
        self._is_collecting = self._is_closing = False
        self._origins: dict[int, Origin] = {}
        """Metadata of each batch, by the number of its first group."""
        self._dropped: list[GroupFate] = []
        self._reported: set[str] = set()
        """Lost replicas that were printed."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="refrl-collector")
        self._producer: Future[None] | None = None
        self._progress = progress
        if progress is not None and progress.collector is not None:
            self._restore(progress.collector)

    def __enter__(self) -> Self:
        """Start collecting."""
        self._producer = self._worker.submit(self._produce)
        self._producer.add_done_callback(self._notify)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop collecting; the batch in progress is aborted with the sampler."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._sampler.close()
        self._worker.shutdown(wait=True)

    def consume(self, step: int, train: Callable[[Rollouts], ResultT]) -> tuple[Collected, ResultT]:
        """Train on the rollouts of a step; wait until they have arrived.

        Raises:
            TrainingError: nothing arrived for `grpo.async_grpo.stall_timeout_seconds`, or the store is lost.
            Exception: raised by the collecting thread, or by `train`.
        """
        self._arrived = max(self._arrived, time.monotonic())
        waiting = ExitStack()

        def run(groups: list[Group], rollouts: Rollouts) -> tuple[Collected, ResultT]:
            waiting.close()
            return self._collected(step, groups, rollouts), train(rollouts)

        with waiting:
            waiting.enter_context(self._timer.time("exposed_generation"))
            return self.buffer.consume(
                run,
                current_weight_version=self._version(),
                on_wait=lambda: self._check_arrivals(step),
                on_drop=lambda name, groups: self._drop(name, groups, step),
            )

    def trained(self, step: int) -> None:
        """Update the replicas' weights if the schedule says so; call it after each step.

        Raises:
            GenerationError: every replica is lost.
            Exception: raised by the collecting thread.
        """
        with self._changed:
            self._trained_steps = step
        if not self._config.async_grpo.in_flight_weight_updates:
            self._wait_until_collected()
        if self._progress is not None:
            self._progress.note(self._state())
        if step >= self._config.max_num_steps or not self._schedule.syncs_sampler(step):
            return
        with self._changed:
            self._step_of_version[self._version()] = step
        with self._timer.time("prepare_for_generation/total"):
            self._sampler.update_weights()
        with self._changed:
            self._synced_steps = step
            self._changed.notify_all()

    def unused(self) -> list[GroupFate]:
        """Empty the buffer, and return the groups it still held; call it after the block.

        Raises:
            TrainingError: a step took groups and did not finish.
        """
        return [self._fate(group, "unused", self._trained_steps + 1) for group in self.buffer.close()]

    def _state(self) -> dict[str, Any]:
        """Return the state as plain values, while nothing is sampled."""
        return {
            "trained_steps": self._trained_steps,
            "num_batches": self._num_batches,
            "num_dropped": self._num_dropped,
            "step_of_version": [list(pair) for pair in self._step_of_version.items()],
            "origins": [[number, origin.state()] for number, origin in self._origins.items()],
            "buffer": self.buffer.state(),
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `_state` returned; the sampler has the policy's weights of that time."""
        self._trained_steps = self._synced_steps = state["trained_steps"]
        self._num_batches, self._num_dropped = state["num_batches"], state["num_dropped"]
        self._step_of_version = {
            **dict(state["step_of_version"]),
            self._version(): self._trained_steps,
        }
        self._origins = {number: Origin.of(origin) for number, origin in state["origins"]}
        self.buffer.restore(state["buffer"])

    def _produce(self) -> None:
        while self._admitted():
            self._offer(self._collector.collect(self._num_batches))

    def _admitted(self) -> bool:
        """Wait until the next batch may be sampled; return whether it is still wanted."""
        with self._changed:
            self._is_collecting = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closing or self._may_sample())
            self._is_collecting = True
            self._num_batches += 1
            return not self._is_closing

    def _may_sample(self) -> bool:
        """Return whether a batch sampled now can be trained on in time, and by a step of this run."""
        last_step = min(self._synced_steps + 1 + self._schedule.max_staleness, self._config.max_num_steps)
        return self._num_batches * self._num_prompts - self._num_dropped < last_step * self._num_prompts

    def _offer(self, collected: Collected) -> None:
        """Pass the groups of a batch to the trainer once there is space for them."""
        self._origins[self.buffer.next_number] = Origin(
            collected.served, collected.counts, collected.discarded, self._collector.timer.take()
        )
        while not self._is_closing:
            try:
                self.buffer.add(collected.rollouts)
            except PartitionFullError:
                time.sleep(LOOK_AGAIN_S)
                continue
            self._arrived = time.monotonic()
            return

    def _collected(self, step: int, groups: Sequence[Group], rollouts: Rollouts) -> Collected:
        """Return what a step trains on, with the metadata of the batches that began in it."""
        self._report_losses(step)
        with self._changed:
            dropped, self._dropped = self._dropped, []
        last = max([group.number for group in groups] + [group.number for group in dropped])
        origins = [self._origins.pop(first) for first in sorted(self._origins) if first <= last]
        ages = [step - 1 - self._step_of_version[group.weight_version] for group in groups]
        counts: dict[str, float] = {}
        for origin in origins:
            for phase, value in origin.seconds.items():
                self._timer.add(phase, value)
            for name, value in origin.counts.items():
                counts[name] = counts.get(name, 0.0) + value
        counts |= {
            "buffer_size": float(len(self.buffer) - len(groups)),
            "avg_trajectory_age": sum(ages) / len(ages),
            "max_trajectory_age": float(max(ages)),
            **{
                f"num_{name.replace(' ', '_')}_groups": float(sum(group.fate == name for group in dropped))
                for name in self.buffer.filter_names
            },
            "num_lost_replicas": float(len(self._sampler.losses)),
        }
        left_out = [origin.discarded for origin in origins if origin.discarded is not None]
        return Collected(
            rollouts=rollouts,
            served=[example for origin in origins for example in origin.served],
            counts=counts,
            discarded=join_rollouts(left_out) if left_out else None,
            fates=[*dropped, *(self._fate(group, "trained", step) for group in groups)],
        )

    def _check_arrivals(self, step: int) -> None:
        """Raise the collecting thread's exception, or an error if nothing has arrived for too long."""
        self._check_producer(step)
        seconds = self._config.async_grpo.stall_timeout_seconds
        if time.monotonic() - self._arrived > seconds:
            raise TrainingError(
                f"step {step}: no rollouts arrived in {seconds:g} s ({len(self.buffer)} of {self._num_prompts} groups "
                f"are there, {self.buffer.next_number} came so far): the generation replicas hang, or "
                "grpo.async_grpo.stall_timeout_seconds is too short for a batch"
            )

    def _wait_until_collected(self) -> None:
        """Wait until every batch that the current weights must sample has arrived."""
        self._arrived = max(self._arrived, time.monotonic())
        with self._changed:
            while self._is_collecting or self._may_sample():
                self._check_arrivals(self._trained_steps + 1)
                self._changed.wait(LOOK_AGAIN_S)

    def _check_producer(self, step: int) -> None:
        """Raise the collecting thread's exception, if it ended."""
        assert self._producer is not None
        if self._producer.done():
            self._producer.result()
            raise TrainingError(f"step {step}: the collector ended before the run did")

    def _report_losses(self, step: int) -> None:
        losses = self._sampler.losses
        for name in losses.keys() - self._reported:
            print(f"step {step}  continues without a replica: {losses[name]}", flush=True)
        self._reported |= losses.keys()

    def _drop(self, name: str, groups: Sequence[Group], step: int) -> None:
        """Let other groups replace those that a filter dropped.

        Raises:
            TrainingError: so many were dropped that the filters may keep none at all.
        """
        with self._changed:
            self._num_dropped += len(groups)
            self._dropped += [self._fate(group, name, step) for group in groups]
            self._changed.notify_all()
            num = Counter(group.fate for group in self._dropped)
        if num.total() > MAX_GENERATION_BATCHES * self._num_prompts:
            counts = ", ".join(f"{name} {count}" for name, count in num.items())
            raise TrainingError(
                f"step {step}: its filters dropped {num.total()} groups and it has not {self._num_prompts} yet "
                f"({counts}): raise grpo.async_grpo.drop_longer_than, or take prompts that are solved at times"
            )

    def _fate(self, group: Group, fate: str, step: int) -> GroupFate:
        return GroupFate(
            group.number, group.prompt_id, fate, self._step_of_version[group.weight_version], step
        )

    def _notify(self, producer: Future[None]) -> None:
        with self._changed:
            self._changed.notify_all()
