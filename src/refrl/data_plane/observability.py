"""What passes through a client: one record an operation, and sums."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from torch import Tensor

from refrl.data_plane.base import DataPlaneClient
from refrl.data_plane.columns import Columns, Value, encode
from refrl.data_plane.metadata import KVBatchMeta
from refrl.data_plane.records import PartitionStatus


@dataclass
class Operation:
    """One call."""

    op: str
    partition_id: str
    n_keys: int = 0
    n_bytes: int = 0
    """Of values put or got."""
    wall_ms: float = 0.0
    status: Literal["ok", "error", "timeout"] = "ok"


@dataclass
class Totals:
    """Sums over the calls of one client."""

    calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Timeouts too."""
    keys: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    max_bytes_per_key: float = 0.0


class ObservedClient:
    """A `DataPlaneClient` that reports each call of another one, and hands every result and error on."""

    def __init__(self, client: DataPlaneClient, report: Callable[[Operation], None] | None = None) -> None:
        """Watch a client; `report` gets every operation when it has ended."""
        self._client = client
        self._report = report
        self.totals = Totals()

    def bytes_outstanding(self) -> int:
        """Return the bytes that the store holds now, from all producers."""
        return sum(self._client.status(name).bytes_held for name in self._client.partitions())

    def register_partition(self, partition_id: str, *words: Any, **options: Any) -> None:
        """See `DataPlaneClient`."""
        with self._watched("register_partition", partition_id):
            self._client.register_partition(partition_id, *words, **options)

    def put_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: Columns | None = None,
        tags: Sequence[Mapping[str, Any]] | None = None,
    ) -> KVBatchMeta:
        """See `DataPlaneClient`."""
        with self._watched("put_samples", partition_id) as seen:
            meta = self._client.put_samples(sample_ids, partition_id, fields, tags)
            seen.n_keys, seen.n_bytes = meta.size, num_bytes(fields or {})
            return meta

    def get_samples(
        self, sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str]
    ) -> dict[str, Value]:
        """See `DataPlaneClient`."""
        with self._watched("get_samples", partition_id) as seen:
            values = self._client.get_samples(sample_ids, partition_id, select_fields)
            seen.n_keys, seen.n_bytes = len(sample_ids), num_bytes(values)
            return values

    def claim_meta(self, partition_id: str, *words: Any, **options: Any) -> KVBatchMeta:
        """See `DataPlaneClient`."""
        with self._watched("claim_meta", partition_id) as seen:
            meta = self._client.claim_meta(partition_id, *words, **options)
            seen.n_keys = meta.size
            return meta

    def renew(self, meta: KVBatchMeta) -> None:
        """See `DataPlaneClient`."""
        with self._watched("renew", meta.partition_id, meta.size):
            self._client.renew(meta)

    def acknowledge(self, meta: KVBatchMeta) -> None:
        """See `DataPlaneClient`."""
        with self._watched("acknowledge", meta.partition_id, meta.size):
            self._client.acknowledge(meta)

    def release(self, meta: KVBatchMeta) -> None:
        """See `DataPlaneClient`."""
        with self._watched("release", meta.partition_id, meta.size):
            self._client.release(meta)

    def get_data(self, meta: KVBatchMeta, select_fields: Sequence[str] | None = None) -> dict[str, Value]:
        """See `DataPlaneClient`."""
        with self._watched("get_data", meta.partition_id, meta.size) as seen:
            values = self._client.get_data(meta, select_fields)
            seen.n_bytes = num_bytes(values)
            return values

    def check_consumption_status(self, partition_id: str, task_names: Sequence[str]) -> bool:
        """See `DataPlaneClient`."""
        with self._watched("check_consumption_status", partition_id):
            return self._client.check_consumption_status(partition_id, task_names)

    def clear_samples(self, sample_ids: Sequence[str] | None, partition_id: str) -> None:
        """See `DataPlaneClient`."""
        with self._watched("clear_samples", partition_id, len(sample_ids or ())):
            self._client.clear_samples(sample_ids, partition_id)

    def acknowledged(self, partition_id: str, task_name: str) -> list[str]:
        """See `DataPlaneClient`; not reported."""
        return self._client.acknowledged(partition_id, task_name)

    def status(self, partition_id: str) -> PartitionStatus:
        """See `DataPlaneClient`; not reported."""
        return self._client.status(partition_id)

    def partitions(self) -> list[str]:
        """See `DataPlaneClient`; not reported."""
        return self._client.partitions()

    def close(self) -> None:
        """See `DataPlaneClient`."""
        self._client.close()

    @contextmanager
    def _watched(self, op: str, partition_id: str, n_keys: int = 0) -> Iterator[Operation]:
        seen, start = Operation(op, partition_id, n_keys), time.perf_counter()
        try:
            yield seen
        except BaseException as error:
            seen.status = "timeout" if isinstance(error, TimeoutError) else "error"
            raise
        finally:
            seen.wall_ms = 1000 * (time.perf_counter() - start)
            self._add(seen)
            if self._report is not None:
                self._report(seen)

    def _add(self, seen: Operation) -> None:
        self.totals.calls[seen.op] += 1
        self.totals.errors[seen.op] += seen.status != "ok"
        self.totals.keys[seen.op] += seen.n_keys
        self.totals.bytes[seen.op] += seen.n_bytes
        if seen.n_keys:
            self.totals.max_bytes_per_key = max(self.totals.max_bytes_per_key, seen.n_bytes / seen.n_keys)


def num_bytes(columns: Columns) -> int:
    """Return the bytes of fields as a store keeps them."""
    return sum(_num_bytes(value, name) for name, value in columns.items())


def _num_bytes(value: Value, name: str) -> int:
    if isinstance(value, np.ndarray):
        return encode(value, name).num_bytes
    rows = [value] if isinstance(value, Tensor) else value
    return sum(row.numel() * row.element_size() for row in rows)
