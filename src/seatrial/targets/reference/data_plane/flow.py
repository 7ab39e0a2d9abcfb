"""refrl's flow of rollouts, offered to the relations: a store under a clock of its own, and the buffer of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from refrl.config.run import DataPlaneConfig
from refrl.data_plane import (
    BaseRolloutFilter,
    ConsumePlan,
    KVBatchMeta,
    LengthFilter,
    RankBatch,
    StalenessFilter,
    WholeGroups,
    ZeroVarianceFilter,
    build_data_plane_client,
    consume,
    kv_first_write,
    read_columns,
    shard_meta_for_dp,
    write_columns,
)
from refrl.data_plane.client import StoreClient
from refrl.data_plane.columns import Column
from refrl.data_plane.control import restored
from refrl.data_plane.factory import LocalControl
from refrl.data_plane.observability import ObservedClient
from refrl.data_plane.store import LocalStore
from refrl.generation.base import Completion
from refrl.rewards import Scores
from refrl.rollout.replay import Group, ReplayBuffer
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example


class InterruptedStore(LocalStore):
    """A store that something happens to before a read."""

    def __init__(self) -> None:
        super().__init__()
        self.before_read: Callable[[], None] | None = None

    def read(self, wanted: Mapping[str, Sequence[int]]) -> dict[str, tuple[Column, Sequence[int]]]:
        call, self.before_read = self.before_read, None
        if call is not None:
            call()
        return super().read(wanted)


class _CrashedReads:
    """Access to a store by a participant that crashes when it reads."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, wanted: Mapping[str, Sequence[int]]) -> Any:
        raise RuntimeError("the participant has crashed")


class JournalledStore:
    """A `seatrial.relations.contracts.rollout_flow.FlowStore` in this process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="flow-", ignore_cleanup_errors=True)
        self._store, self._now = InterruptedStore(), 0.0
        self.restart()

    def client(self) -> StoreClient:
        return StoreClient(self._control, self._store, lease_s=600.0)

    def dying_client(self) -> StoreClient:
        return StoreClient(self._control, _CrashedReads(self._store), lease_s=600.0)

    def pass_time(self, seconds: float) -> None:
        self._now += seconds

    def before_next_read(self, call: Callable[[], None]) -> None:
        self._store.before_read = call

    def restart(self) -> None:
        journal = Path(self._folder.name) / "journal.jsonl"
        self._control = LocalControl(restored(journal, lambda: self._now))


class GroupBuffer:
    """A `seatrial.relations.contracts.rollout_flow.Buffer` around the one of a run."""

    def __init__(self, buffer: ReplayBuffer, group_size: int) -> None:
        self._buffer, self._group_size = buffer, group_size
        self._put: dict[int, list[Any]] = {}
        self._rows: list[tuple[int, Any, Any]] = []
        self._dropped: dict[int, str] = {}

    def put(self, versions: Sequence[int]) -> None:
        first = self._buffer.next_number
        parts = [
            made_group(first + place, version, self._group_size) for place, version in enumerate(versions)
        ]
        self._buffer.add(_joined(parts))
        self._put.update((first + place, _rows(part)) for place, part in enumerate(parts))

    def take(self, current_version: int) -> Sequence[tuple[int, int]]:
        def train(groups: list[Group], rollouts: Rollouts) -> list[Group]:
            rows, size = _rows(rollouts), self._group_size
            for place, group in enumerate(groups):
                own = rows[place * size : (place + 1) * size]
                self._rows += [
                    (group.number, *pair) for pair in zip(self._put[group.number], own, strict=True)
                ]
            return groups

        groups = self._buffer.consume(train, current_weight_version=current_version, on_drop=self._drop)
        return [(group.number, group.weight_version) for group in groups]

    def dropped(self) -> Mapping[int, str]:
        return self._dropped

    def rows(self) -> Sequence[tuple[int, Any, Any]]:
        return self._rows

    def left(self) -> Sequence[int]:
        return [group.number for group in self._buffer.close()]

    def state(self) -> Any:
        return {"buffer": self._buffer.state(), "put": self._put}

    def restore(self, state: Any) -> None:
        self._buffer.restore(state["buffer"])
        self._put = dict(state["put"])

    def size(self) -> int:
        return len(self._buffer)

    def _drop(self, reason: str, groups: list[Group]) -> None:
        self._dropped.update((group.number, reason) for group in groups)


class ReferenceFlow:
    """See the contract `seatrial.relations.contracts.rollout_flow.RolloutFlow`."""

    def flow_store(self) -> JournalledStore:
        return JournalledStore()

    def configured_client(self, *, lease_s: float) -> Any:
        return build_data_plane_client(DataPlaneConfig(lease_s=lease_s))

    def observed_client(self) -> tuple[Any, Callable[[], Mapping[str, tuple[int, int, int, int]]]]:
        client = ObservedClient(build_data_plane_client(DataPlaneConfig()))
        totals = client.totals

        def counted() -> dict[str, tuple[int, int, int, int]]:
            return {
                name: (calls, totals.errors[name], totals.keys[name], totals.bytes[name])
                for name, calls in totals.calls.items()
            }

        return client, counted

    def flow_meta(
        self,
        partition_id: str,
        sample_ids: Sequence[str],
        tags: Sequence[Mapping[str, Any]] | None,
        sequence_lengths: Sequence[int] | None,
    ) -> KVBatchMeta:
        return KVBatchMeta(
            partition_id=partition_id,
            sample_ids=list(sample_ids),
            tags=None if tags is None else [dict(own) for own in tags],
            sequence_lengths=None if sequence_lengths is None else list(sequence_lengths),
            fields=["ids"],
        )

    def flow_filter(self, kind: str, bound: int | None = None) -> BaseRolloutFilter:
        if kind == "zero variance":
            return ZeroVarianceFilter()
        return StalenessFilter(bound or 0) if kind == "stale" else WholeGroups(LengthFilter(bound or 0))

    def first_write(
        self,
        client: Any,
        batch: Mapping[str, Any],
        sample_ids: Sequence[str],
        partition_id: str,
        tags: Sequence[Mapping[str, Any]] | None = None,
    ) -> KVBatchMeta:
        return kv_first_write(batch, sample_ids, client, partition_id, tags=tags)

    def read_back(
        self, client: Any, meta: KVBatchMeta, fields: Sequence[str], pad_values: Mapping[str, float]
    ) -> Mapping[str, Any]:
        return read_columns(client, meta, fields, pad_values=pad_values)

    def write_back(self, client: Any, meta: KVBatchMeta, fields: Mapping[str, Any]) -> None:
        write_columns(client, meta, fields)

    def shard_batches(
        self, meta: KVBatchMeta, ranks: int, batch_size: int | None
    ) -> tuple[Sequence[KVBatchMeta], Sequence[int] | None]:
        return shard_meta_for_dp(meta, ranks, batch_size)

    def flow_step(
        self,
        client: Any,
        partition_id: str,
        fields: Sequence[str],
        *,
        batch_size: int,
        train: Callable[[Sequence[Sequence[str]]], None],
        current_weight_version: int,
        filters: Sequence[Any] = (),
        ranks: int = 1,
        min_kept: int = 0,
    ) -> tuple[Sequence[str], Mapping[str, Sequence[str]], Sequence[str]]:
        plan = ConsumePlan(
            partition_id=partition_id,
            task_name="train",
            fields=fields,
            batch_size=batch_size,
            filters=filters,
            dp_world=ranks,
            min_kept=min_kept,
            timeout_s=0.0,
        )

        def step(batches: Sequence[RankBatch]) -> None:
            train([batch.meta.sample_ids for batch in batches])

        done = consume(client, plan, step, current_weight_version=current_weight_version)
        return done.trained.sample_ids, done.dropped, done.returned

    def replay_buffer(
        self, *, groups_per_step: int, group_size: int, capacity: int, max_age: int
    ) -> GroupBuffer:
        buffer = ReplayBuffer(
            build_data_plane_client(DataPlaneConfig()),
            groups_per_step=groups_per_step,
            group_size=group_size,
            capacity=capacity,
            filters=[StalenessFilter(max_age)],
            timeout_s=0.0,
        )
        return GroupBuffer(buffer, group_size)


def made_group(number: int, version: int, size: int) -> Rollouts:
    """Return rows that differ from one another in everything, the last of them begun `size` - 1 versions later."""
    rows = [10 * number + place for place in range(size)]
    lens = [1 + (row * 7) % 5 for row in rows]
    return Rollouts(
        examples=[Example(number, f"p{number}", f"a{number}", "made") for _ in rows],
        completions=[
            Completion(
                prompt_ids=tuple(range(1 + number % 3)),
                ids=tuple(100 + (row + token) % 50 for token in range(length)),
                logprobs=tuple(-0.1 * (1 + row % 7) - token / 3 for token in range(length)),
                finish_reason="stop" if row % 2 else "length",
                kept_ids=None if row % 3 else tuple(tuple(range(1 + token)) for token in range(length)),
                weight_version=version + place,
                version_segments=((0, version + place), (1, version + place + 1)) if row % 4 == 1 else (),
                mask=None if row % 5 else (0,) * (length - 1) + (1,),
            )
            for place, (row, length) in enumerate(zip(rows, lens, strict=True))
        ],
        texts=[f"t{row}" for row in rows],
        scores=Scores(
            rewards=[row / 7 - 0.25 * (row % 2) for row in rows],
            num_errors=sum(row % 6 == 5 for row in rows),
            first_error="no number" if any(row % 6 == 5 for row in rows) else None,
            penalties=[-0.25 * (row % 2) for row in rows],
            failed=[row % 6 == 5 for row in rows],
            unshaped=[row / 7 for row in rows],
        ),
    )


def _joined(parts: Sequence[Rollouts]) -> Rollouts:
    from refrl.rollout.sync import join_rollouts

    return join_rollouts(parts)


def _rows(rollouts: Rollouts) -> list[Any]:
    """Return each row as it can be compared: everything but what is said of the whole batch."""
    scores = rollouts.scores
    columns = (
        *(rollouts.examples, rollouts.completions, rollouts.texts),
        *(scores.rewards, scores.penalties or (), scores.failed, scores.verified),
    )
    return list(zip(*columns, strict=True))
