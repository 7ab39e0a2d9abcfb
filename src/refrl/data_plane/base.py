"""The interface of a data plane to producers, trainers and filters.

A **partition** is an address space of samples. A **sample** is a row: an id, tags, and fields that may come one after
the other from several writers. A **task** is a consumer with a cursor of its own. A **claim** gives a consumer samples
that have all the fields it needs, under a **lease**: they are exclusive until it is acknowledged, released or expired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from refrl.data_plane.columns import Columns, Value
from refrl.data_plane.metadata import KVBatchMeta
from refrl.data_plane.records import PartitionStatus


@runtime_checkable
class DataPlaneClient(Protocol):
    """A client of the store. Every call returns within the store's time limit, with a result or an error."""

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
        """Make a partition; the same words again change nothing.

        Args:
            partition_id: its name.
            fields: all that samples may ever have.
            num_samples: most live samples; see `put_samples`.
            consumer_tasks: who may claim.
            grpo_group_size: claims contain whole groups only; a sample's group is its id before the last `_g`.
            enums: values that a tag may have.
            required_tags: tags that every new sample must bring.

        Raises:
            ValueError: it exists with other words, or could hold nothing.
        """
        ...

    def put_samples(
        self,
        sample_ids: Sequence[str],
        partition_id: str,
        fields: Columns | None = None,
        tags: Sequence[Mapping[str, Any]] | None = None,
    ) -> KVBatchMeta:
        """Make samples, or further fields and tags of samples, visible to all at once; a failed put leaves nothing.

        A value that was there is replaced, a tag too; what was claimed is not served again for that. Nothing is shared
        with the caller's tensors.

        Raises:
            UnknownPartitionError: it was not registered.
            PartitionFullError: more samples than the partition was registered for.
            TypeError: a field or tag that cannot be kept as it is.
            ValueError: ids twice, other numbers of rows or tags than ids, unknown fields, a field of another dtype,
                a required tag that is missing.
        """
        ...

    def get_samples(
        self, sample_ids: Sequence[str], partition_id: str, select_fields: Sequence[str]
    ) -> dict[str, Value]:
        """Return fields, row i of each being `sample_ids[i]`, as copies.

        Raises:
            UnknownSampleError, FieldNotProducedError: any of the values is not there.
            DataLostError: the bytes are gone.
        """
        ...

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
        """Lease samples that have these fields and that this task never had, or gave back; oldest first.

        Args:
            partition_id: where.
            task_name: whose cursor.
            required_fields: at least one.
            batch_size: most samples.
            min_batch_size: fewest; with `blocking`, fewer are waited with.
            blocking: wait for them; otherwise an empty meta says that there are not enough.
            timeout_s: after which waiting ends.
            lease_s: seconds after which the samples are given back unless renewed; None takes the store's.

        Raises:
            TimeoutError: there were not enough until then.
            UnknownPartitionError, UnknownTaskError, FieldNotProducedError: not registered.
        """
        ...

    def renew(self, meta: KVBatchMeta) -> None:
        """Let the lease of a claim begin again.

        Raises:
            LeaseExpiredError: a sample of the meta is not this claim's any more.
        """
        ...

    def acknowledge(self, meta: KVBatchMeta) -> None:
        """Take samples of a claim for good: call it right before the step that trains on them.

        Raises:
            LeaseExpiredError: a sample is not this claim's any more, so that another may train on it; nothing was
                taken.
        """
        ...

    def release(self, meta: KVBatchMeta) -> None:
        """Give samples of a claim back: they are served again, before others."""
        ...

    def get_data(self, meta: KVBatchMeta, select_fields: Sequence[str] | None = None) -> dict[str, Value]:
        """Return fields of a meta's samples (None takes the meta's fields); no cursor moves.

        Raises:
            ValueError: neither names a field.
            UnknownSampleError, FieldNotProducedError, DataLostError: see `get_samples`.
        """
        ...

    def check_consumption_status(self, partition_id: str, task_names: Sequence[str]) -> bool:
        """Return whether each task has claimed every live sample and given none back; a later put makes it false.

        Raises:
            UnknownPartitionError, UnknownTaskError: not registered.
        """
        ...

    def clear_samples(self, sample_ids: Sequence[str] | None, partition_id: str) -> None:
        """Remove samples and free their bytes; unknown ones are no error. None: all, and the partition itself.

        Raises:
            StoreUnavailableError: the samples are removed, but their bytes could not be freed.
        """
        ...

    def acknowledged(self, partition_id: str, task_name: str) -> list[str]:
        """Return the live samples that a task has acknowledged: what a crashed trainer trained on and did not clear.

        Raises:
            UnknownPartitionError, UnknownTaskError: not registered.
        """
        ...

    def status(self, partition_id: str) -> PartitionStatus:
        """Return rows, leases and bytes of a partition.

        Raises:
            UnknownPartitionError: not registered.
        """
        ...

    def partitions(self) -> list[str]:
        """Return the names of those that are registered."""
        ...

    def close(self) -> None:
        """End this client alone; the store and other clients stay. A second call is no error."""
        ...
