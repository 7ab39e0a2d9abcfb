"""refrl's data plane, offered to the relations: the client and the filter that a run uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from refrl.config.run import DataPlaneConfig
from refrl.data_plane import KVBatchMeta, StalenessFilter, build_data_plane_client, shard_meta_for_dp
from seatrial.relations.not_served import NotServed


class LocalPlane:
    """A store in this process, as `seatrial.relations.contracts.data_plane.OpenPlane`."""

    def __init__(self) -> None:
        self._client: Any = build_data_plane_client(DataPlaneConfig())

    def client(self) -> Any:
        return self._client.attach()

    def bytes_held(self, partition_id: str) -> int:
        others = (name for name in self._client.partitions() if name != partition_id)
        return self._stored() - sum(int(self._client.status(name).bytes_held) for name in others)

    def _stored(self) -> int:
        """Return the bytes that the store has, also those that the control knows nothing of."""
        return sum(column.num_bytes for column in self._client._store._columns.values())

    def kill_store(self) -> None:
        raise NotServed("the store lives in this process")

    def kill_control(self) -> None:
        raise NotServed("the control lives in this process")


class ReferenceDataPlane:
    """See the contract of the same name in `seatrial.relations.contracts.data_plane`."""

    data_plane_in_process = True

    @cached_property
    def _plane(self) -> Any:
        return self.data_plane_to_break()

    def data_plane(self) -> Any:
        return self._plane

    def data_plane_to_break(self) -> Any:
        return LocalPlane()

    def shard(self, meta: KVBatchMeta, ranks: int) -> Sequence[KVBatchMeta]:
        return shard_meta_for_dp(meta, ranks)[0]

    def filter_stale(
        self,
        meta: KVBatchMeta,
        tags: Sequence[Mapping[str, Any]] | None,
        *,
        max_staleness: int,
        current_weight_version: Any,
    ) -> tuple[KVBatchMeta, KVBatchMeta]:
        tagged = replace(meta, tags=None if tags is None else [dict(own) for own in tags])
        return StalenessFilter(max_staleness)(tagged, current_weight_version=current_weight_version)
