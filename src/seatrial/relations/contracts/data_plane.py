"""Contract of the data plane: the store of rollout rows between producers and consumers.

Part of `seatrial.relations.contracts`, which lists every component. Names are NeMo RL's (its `DataPlaneClient`), with
what a consumer that may crash needs in addition: a lease and an acknowledgement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


class BatchMeta(Protocol):
    """Ids, tags and lengths of rows, without their data."""

    @property
    def sample_ids(self) -> Sequence[str]:
        """Ids of the samples."""
        ...

    @property
    def tags(self) -> Sequence[Mapping[str, Any]] | None:
        """Tags of each sample."""
        ...

    @property
    def sequence_lengths(self) -> Sequence[int] | None:
        """Length of each sample: the tag `input_lengths` set by its producer."""
        ...


class PlaneClient(Protocol):
    """A client of the store."""

    def register_partition(
        self, partition_id: str, fields: Sequence[str], num_samples: int, consumer_tasks: Sequence[str]
    ) -> None:
        """Create a partition for these fields and consumers, with at most `num_samples` live samples."""
        ...

    def put_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: Mapping[str, Any] | None = None,
        tags: Sequence[Mapping[str, Any]] | None = None,
    ) -> Any:
        """Make samples visible. A field is a tensor `[N, ...]`, a list of N tensors, or a numpy array of N objects."""
        ...

    def get_samples(
        self, sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str]
    ) -> Mapping[str, Any]:
        """Return fields in the same forms; row i belongs to `sample_ids[i]`."""
        ...

    def claim_meta(
        self,
        partition_id: str,
        task_name: str,
        required_fields: Sequence[str],
        batch_size: int,
        *,
        blocking: bool = True,
        timeout_s: float = 60.0,
        lease_s: float | None = None,
    ) -> BatchMeta:
        """Take at most `batch_size` samples that no other claimer of the task has, for `lease_s` seconds."""
        ...

    def acknowledge(self, meta: Any) -> None:
        """Mark claimed samples as consumed."""
        ...

    def release(self, meta: Any) -> None:
        """Return claimed samples, so that they can be claimed again."""
        ...

    def get_data(self, meta: Any, select_fields: Sequence[str] | None = None) -> Mapping[str, Any]:
        """Return fields of a meta's samples; None: those of the claim."""
        ...

    def check_consumption_status(self, partition_id: str, task_names: Sequence[str]) -> bool:
        """Return whether these tasks have claimed every live sample."""
        ...

    def clear_samples(self, sample_ids: Sequence[str] | None, partition_id: str) -> None:
        """Delete samples and free their bytes; None deletes the partition too."""
        ...

    def partitions(self) -> Sequence[str]:
        """Return the partitions of the store."""
        ...

    def close(self) -> None:
        """Close this client only."""
        ...


class OpenPlane(Protocol):
    """A running store."""

    def client(self) -> PlaneClient:
        """Return a new client."""
        ...

    def bytes_held(self, partition_id: str) -> int:
        """Return the bytes that the store holds for a partition."""
        ...

    def kill_store(self) -> None:
        """Kill the process that stores the data, and return when it has exited."""
        ...

    def kill_control(self) -> None:
        """Kill the process that keeps ids, tags and claims, and return when it has exited."""
        ...


@runtime_checkable
class DataPlane(Protocol):
    """The data plane; one that lives in its client's process declares so with `data_plane_in_process = True`."""

    def data_plane(self) -> OpenPlane:
        """Return a store shared by laws; each law uses its own partitions and clears them."""
        ...

    def data_plane_to_break(self) -> OpenPlane:
        """Return a store for one law, which kills parts of it."""
        ...

    def shard(self, meta: Any, ranks: int) -> Sequence[BatchMeta]:
        """Return each rank's rows of a claim."""
        ...

    def filter_stale(
        self,
        meta: Any,
        tags: Sequence[Mapping[str, Any]] | None,
        *,
        max_staleness: int,
        current_weight_version: Any,
    ) -> tuple[BatchMeta, BatchMeta]:
        """Return (keep, drop) of a claim by the tag `weight_version`, its tags replaced by `tags`."""
        ...
