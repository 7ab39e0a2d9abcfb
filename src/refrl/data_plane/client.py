"""The client: one for every implementation, over the shared state and the store that holds the bytes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from refrl.data_plane.columns import Columns, Value, decode, encode, gather
from refrl.data_plane.errors import DataLostError, DataPlaneError, StoreUnavailableError
from refrl.data_plane.metadata import KVBatchMeta
from refrl.data_plane.partition import PartitionSpec, plain_tags, shown
from refrl.data_plane.records import Claim, PartitionStatus, Waste
from refrl.data_plane.store import BlockGoneError, ColumnStore

READ_ATTEMPTS = 3
"""How often a block is looked for that was moved between being located and being read."""


class ControlLink(Protocol):
    """The way to the shared state (`control.ControlState`), wherever it lives."""

    def call(self, operation: str, *words: Any, **options: Any) -> Any:
        """Call one of its methods.

        Raises:
            StoreUnavailableError: it is dead or does not answer; whether the call was done is unknown.
            DataPlaneError, ValueError: what the method raises.
        """
        ...

    def wait(self, seconds: float) -> None:
        """Return after a change that may make samples ready, or after so many seconds at the latest."""
        ...


class StoreClient:
    """A `refrl.data_plane.base.DataPlaneClient`."""

    def __init__(self, control: ControlLink, store: ColumnStore, *, lease_s: float) -> None:
        """Work over a state and a store; `lease_s` is how long a claim holds where it says nothing else."""
        self._control = control
        self._store = store
        self._lease_s = lease_s
        self._closed = False

    def register_partition(
        self,
        partition_id: str,
        fields: Sequence[str],
        num_samples: int,
        consumer_tasks: Sequence[str],
        grpo_group_size: int | None = None,
        enums: Mapping[str, Sequence[Any]] | None = None,
        *,
        required_tags: Sequence[str] = (),
    ) -> None:
        """See `DataPlaneClient`."""
        spec = PartitionSpec(
            fields=tuple(fields),
            num_samples=num_samples,
            consumer_tasks=tuple(consumer_tasks),
            grpo_group_size=grpo_group_size,
            enums={name: tuple(values) for name, values in (enums or {}).items()},
            required_tags=tuple(required_tags),
        )
        self._call("register", partition_id, spec)

    def put_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: Columns | None = None,
        tags: Sequence[Mapping[str, Any]] | None = None,
    ) -> KVBatchMeta:
        """See `DataPlaneClient`."""
        samples = list(sample_ids)
        plain = None if tags is None else plain_tags(tags)
        columns = {name: encode(value, name) for name, value in (fields or {}).items()}
        meta = KVBatchMeta(partition_id=partition_id, sample_ids=samples, fields=list(columns), tags=plain)
        for name, column in columns.items():
            if column.num_rows != len(samples):
                raise ValueError(f"field {name!r} has {column.num_rows} rows for {len(samples)} samples")
        if not samples:
            return meta
        blocks = self._store.save(columns) if columns else []
        try:
            waste = self._call("publish", partition_id, samples, blocks, plain)
        except StoreUnavailableError:
            raise  # it may have been published: dropping the bytes could take them from live samples
        except (DataPlaneError, ValueError):
            self._store.drop([block.name for block in blocks])
            raise
        self._tidy(waste)
        return meta

    def get_samples(
        self, sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str]
    ) -> dict[str, Value]:
        """See `DataPlaneClient`."""
        samples = list(sample_ids)
        if not samples:
            return {}
        for _ in range(READ_ATTEMPTS):
            located = self._call("locate", partition_id, samples, list(select_fields))
            wanted = {block: rows for places in located.values() for block, (rows, _) in places.items()}
            try:
                read = self._store.read(wanted)
            except BlockGoneError:
                continue  # moved or cleared since: the state knows better now
            except StoreUnavailableError as error:
                raise type(error)(
                    f"{error}; asked for samples {shown(samples)} of {partition_id!r}"
                ) from error
            return {
                name: decode(
                    gather(
                        [(*read[block], positions) for block, (_, positions) in places.items()], len(samples)
                    )
                )
                for name, places in located.items()
            }
        raise DataLostError(f"the bytes of samples {shown(samples)} of partition {partition_id!r} are gone")

    def claim_meta(
        self,
        partition_id: str,
        task_name: str,
        required_fields: Sequence[str],
        batch_size: int,
        *,
        min_batch_size: int = 1,
        blocking: bool = True,
        timeout_s: float = 60.0,
        lease_s: float | None = None,
    ) -> KVBatchMeta:
        """See `DataPlaneClient`."""
        if not 1 <= min_batch_size <= batch_size:
            raise ValueError(
                f"min_batch_size={min_batch_size} and batch_size={batch_size}: 1 <= fewest <= most"
            )
        lease_id = uuid.uuid4().hex
        end = time.monotonic() + timeout_s
        words = (partition_id, task_name, list(required_fields), lease_id)
        seconds = self._lease_s if lease_s is None else lease_s
        while True:
            self._store.check()  # a claim of rows that cannot be read would move the cursor for nothing
            claim: Claim = self._call("claim", *words, most=batch_size, least=min_batch_size, seconds=seconds)
            left = end - time.monotonic()
            if claim.samples or not blocking:
                return _claimed(words, claim)
            if left <= 0:
                raise TimeoutError(
                    f"partition {partition_id!r} had fewer than {min_batch_size} samples ready for {task_name!r} in "
                    f"{timeout_s:g} s: is a producer alive, and does somebody write {', '.join(required_fields)}?"
                )
            self._control.wait(left)

    def renew(self, meta: KVBatchMeta) -> None:
        """See `DataPlaneClient`."""
        if meta.sample_ids:
            self._call("renew", _lease_of(meta), meta.sample_ids)

    def acknowledge(self, meta: KVBatchMeta) -> None:
        """See `DataPlaneClient`."""
        if meta.sample_ids:
            self._call("acknowledge", _lease_of(meta), meta.sample_ids)

    def release(self, meta: KVBatchMeta) -> None:
        """See `DataPlaneClient`."""
        if meta.sample_ids:
            self._call("release", _lease_of(meta), meta.sample_ids)

    def get_data(self, meta: KVBatchMeta, select_fields: Sequence[str] | None = None) -> dict[str, Value]:
        """See `DataPlaneClient`."""
        fields = meta.fields if select_fields is None else select_fields
        if not fields:
            raise ValueError("neither select_fields nor the meta names a field")
        return self.get_samples(meta.sample_ids, meta.partition_id, fields)

    def check_consumption_status(self, partition_id: str, task_names: Sequence[str]) -> bool:
        """See `DataPlaneClient`."""
        return bool(self._call("drained", partition_id, list(task_names)))

    def clear_samples(self, sample_ids: Sequence[str] | None, partition_id: str) -> None:
        """See `DataPlaneClient`."""
        samples = None if sample_ids is None else list(sample_ids)
        if samples != []:
            self._tidy(self._call("clear", partition_id, samples))

    def acknowledged(self, partition_id: str, task_name: str) -> list[str]:
        """See `DataPlaneClient`."""
        return list(self._call("acknowledged", partition_id, task_name))

    def status(self, partition_id: str) -> PartitionStatus:
        """See `DataPlaneClient`."""
        status: PartitionStatus = self._call("status", partition_id)
        return status

    def partitions(self) -> list[str]:
        """See `DataPlaneClient`."""
        return list(self._call("names"))

    def attach(self) -> StoreClient:
        """Return another client of the same store."""
        return StoreClient(self._control, self._store, lease_s=self._lease_s)

    def close(self) -> None:
        """See `DataPlaneClient`."""
        self._closed = True

    def _call(self, operation: str, *words: Any, **options: Any) -> Any:
        if self._closed:
            raise DataPlaneError("this client is closed; build another one")
        return self._control.call(operation, *words, **options)

    def _tidy(self, waste: Waste) -> None:
        """Free what nothing needs, and copy the living out of blocks of which little is needed."""
        self._store.drop(waste.dropped)
        for sparse in waste.sparse:
            try:
                column, rows = self._store.read({sparse.name: sparse.rows})[sparse.name]
            except BlockGoneError:
                continue  # another client was first
            (block,) = self._store.save({sparse.field: column.take(rows)})
            self._tidy(self._call("move", sparse.name, block.name, block.num_bytes, sparse.rows))


def _claimed(words: tuple[str, str, list[str], str], claim: Claim) -> KVBatchMeta:
    partition_id, task, fields, lease_id = words
    lengths = [tags.get("input_lengths") for tags in claim.tags]
    return KVBatchMeta(
        partition_id=partition_id,
        task_name=task,
        sample_ids=claim.samples,
        fields=fields,
        sequence_lengths=None if None in lengths else lengths,  # type: ignore[arg-type]
        tags=claim.tags,
        lease_id=lease_id if claim.samples else None,
    )


def _lease_of(meta: KVBatchMeta) -> str:
    if meta.lease_id is None:
        raise ValueError("the meta has no lease: it is not of a claim, or joins several claims")
    return meta.lease_id
