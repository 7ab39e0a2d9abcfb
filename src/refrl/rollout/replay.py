"""The queue of completion groups between sampling and training: which step may train on which, over a data plane.

The rows are in the store, under ids that name their group and index (`7_g0`); nothing of them is kept here. A group
is put once and whole, served in the order of arrival, and cleared once it was trained on or dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from refrl.data_plane import (
    BaseRolloutFilter,
    ConsumePlan,
    DataPlaneClient,
    KVBatchMeta,
    RankBatch,
    StoreUnavailableError,
    consume,
    kv_first_write,
    read_columns,
)
from refrl.errors import TrainingError
from refrl.rollout.columns import FIELDS, TAGS, from_columns, from_plain, to_columns, to_plain, to_tags
from refrl.rollout.sync import Rollouts

PARTITION, TASK = "rollouts", "train"
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, kw_only=True)
class Group:
    """The completions of one prompt, by their tags."""

    number: int
    """Place in the order of generation, from 0; no two groups of a run share one."""
    prompt_id: int
    weight_version: int
    """Optimizer steps that the weights had seen when the oldest of its rows began."""


class ReplayBuffer:
    """The buffer between a run's producer and its trainer; one thread each."""

    def __init__(
        self,
        client: DataPlaneClient,
        *,
        groups_per_step: int,
        group_size: int,
        capacity: int,
        filters: Sequence[BaseRolloutFilter] = (),
        timeout_s: float = float("inf"),
    ) -> None:
        """Register the partition.

        Args:
            client: of the store.
            groups_per_step: that a step trains on.
            group_size: completions of a group.
            capacity: most groups in the store, those of the running step included.
            filters: what they drop is not trained on; others take its place.
            timeout_s: how long `consume` waits for groups.
        """
        self._client = client
        self._group_size = group_size
        self._capacity = capacity
        num_rows = groups_per_step * group_size
        self._plan = ConsumePlan(
            partition_id=PARTITION,
            task_name=TASK,
            fields=FIELDS,
            batch_size=num_rows,
            min_batch_size=num_rows,
            min_kept=num_rows,
            filters=filters,
            layout="jagged",
            timeout_s=timeout_s,
        )
        self.next_number = 0
        self._there: set[int] = set()
        """Groups that were put, and neither trained on nor dropped."""
        client.register_partition(
            PARTITION,
            FIELDS,
            capacity * group_size,
            [TASK],
            grpo_group_size=group_size,
            required_tags=TAGS,
        )

    @property
    def filter_names(self) -> list[str]:
        """Reasons for which groups may be dropped."""
        return [one.name for one in self._plan.filters]

    def __len__(self) -> int:
        """Return the groups that were put, and neither trained on nor dropped."""
        return len(self._there)

    def add(self, rollouts: Rollouts) -> None:
        """Put groups under the next numbers, all of them or none.

        Args:
            rollouts: whole groups, one after the other; a prompt that was drawn twice has two.

        Raises:
            refrl.data_plane.PartitionFullError: the buffer is full; try again after a step.
            ValueError: some rows are not such a group.
            TrainingError: the store is lost.
        """
        num = len(rollouts.examples) // self._group_size
        self._put(rollouts, range(self.next_number, self.next_number + num))
        self.next_number += num

    def consume(
        self,
        train: Callable[[list[Group], Rollouts], ResultT],
        *,
        current_weight_version: int,
        on_wait: Callable[[], None] = lambda: None,
        on_drop: Callable[[str, list[Group]], None] = lambda name, groups: None,
    ) -> ResultT:
        """Train once on the first groups that the filters leave, and clear them; see `refrl.data_plane.consume`.

        Raises:
            TrainingError: the store is lost.
        """
        results: list[ResultT] = []

        def step(batches: Sequence[RankBatch]) -> None:
            (batch,) = batches
            results.append(train(self._groups(batch.meta), from_columns(batch.columns)))

        def drop(name: str, meta: KVBatchMeta) -> None:
            groups = self._groups(meta)
            self._there.difference_update(group.number for group in groups)
            on_drop(name, groups)

        with self._lost():
            consumed = consume(
                self._client,
                self._plan,
                step,
                current_weight_version=current_weight_version,
                on_wait=on_wait,
                on_drop=drop,
            )
        self._there.difference_update(group.number for group in self._groups(consumed.trained))
        return results[0]

    def close(self) -> list[Group]:
        """Clear everything, and return the groups that no step has taken.

        Raises:
            TrainingError: a group was taken and never cleared, or the store is lost.
        """
        with self._lost():
            size = self._capacity * self._group_size
            left = self._client.claim_meta(PARTITION, TASK, FIELDS, size, blocking=False)
            self._client.clear_samples(left.sample_ids, PARTITION)
            taken = self._client.status(PARTITION).num_rows
            self._client.clear_samples(None, PARTITION)
        if taken:
            raise TrainingError(
                f"{taken} samples of the data plane were taken and never cleared: their step did not end"
            )
        self._there.clear()
        return self._groups(left)

    def state(self) -> dict[str, Any]:
        """Return everything as plain values, for a checkpoint; call it while no thread takes or puts.

        Raises:
            TrainingError: the store is lost.
        """
        numbers = sorted(self._there)
        groups = []
        with self._lost():
            for number in numbers:
                meta = KVBatchMeta(partition_id=PARTITION, sample_ids=self._sample_ids([number]))
                rows = from_columns(read_columns(self._client, meta, FIELDS, layout="jagged"))
                groups.append({"number": number, **to_plain(rows)})
        return {"next_number": self.next_number, "groups": groups}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the buffer that returned the state.

        Raises:
            ValueError: the state is not whole, or holds a group twice or one that was never put.
            refrl.data_plane.PartitionFullError: the state exceeds the capacity.
        """
        missing = {"next_number", "groups"} - state.keys()
        if missing:
            raise ValueError(f"the state of the replay buffer has no {', '.join(sorted(missing))}")
        numbers = [fields["number"] for fields in state["groups"]]
        if len(set(numbers)) < len(numbers) or any(number >= state["next_number"] for number in numbers):
            raise ValueError(
                f"the state of the replay buffer holds groups {numbers} of {state['next_number']}: each must be there "
                "once, and have been put"
            )
        groups = [from_plain(fields) for fields in state["groups"]]
        for number, rollouts in zip(numbers, groups, strict=True):
            self._put(rollouts, [number])
        self.next_number = state["next_number"]

    def _put(self, rollouts: Rollouts, numbers: Sequence[int]) -> None:
        of_row = [number for number in numbers for _ in range(self._group_size)]
        if len(of_row) != len(rollouts.examples):
            raise ValueError(f"{len(rollouts.examples)} rows are no whole groups of {self._group_size}")
        for place, number in enumerate(numbers):
            rows = rollouts.examples[place * self._group_size : (place + 1) * self._group_size]
            prompts = {example.prompt_id for example in rows}
            if len(prompts) > 1:
                raise ValueError(f"group {number} has completions of prompts {sorted(prompts)}")
        # Before they can be taken.
        self._there.update(numbers)
        try:
            with self._lost():
                kv_first_write(
                    to_columns(rollouts),
                    self._sample_ids(numbers),
                    self._client,
                    PARTITION,
                    tags=to_tags(rollouts, of_row),
                )
        except TrainingError:
            raise
        except BaseException:
            self._there.difference_update(numbers)
            raise

    def _sample_ids(self, numbers: Sequence[int]) -> list[str]:
        return [f"{number}_g{place}" for number in numbers for place in range(self._group_size)]

    def _groups(self, meta: KVBatchMeta) -> list[Group]:
        """Return the groups of a meta's samples, in order."""
        first = {tags["group_id"]: tags for tags in reversed(meta.tags or ())}
        return [
            Group(number=number, prompt_id=tags["prompt_id"], weight_version=tags["weight_version"])
            for number, tags in reversed(first.items())
        ]

    @contextmanager
    def _lost(self) -> Iterator[None]:
        """Name the lost groups in the error of a lost store."""
        try:
            yield
        except StoreUnavailableError as error:
            groups = ", ".join(map(str, sorted(self._there.copy()))) or "none"
            raise TrainingError(
                f"the data plane is lost: {error}; groups that were put and not trained on: {groups}"
            ) from error
