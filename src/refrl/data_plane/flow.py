"""From the store to a training step: claim, filter, share among the ranks, read, train, clear."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from refrl.data_plane.base import DataPlaneClient
from refrl.data_plane.column_io import read_columns, shard_meta_for_dp
from refrl.data_plane.filters import BaseRolloutFilter
from refrl.data_plane.metadata import KVBatchMeta


@dataclass(frozen=True, kw_only=True)
class ConsumePlan:
    """What a consumer takes, and how."""

    partition_id: str
    task_name: str
    fields: Sequence[str]
    """Read, and required of a sample before it is claimed."""
    batch_size: int
    """Most samples of a claim."""
    min_batch_size: int = 1
    filters: Sequence[BaseRolloutFilter] = ()
    """In this order: each sees what those before it kept."""
    dp_world: int = 1
    pad_values: Mapping[str, float] = field(default_factory=dict)
    timeout_s: float = 60.0
    lease_s: float | None = None


@dataclass(frozen=True)
class RankBatch:
    """What one data-parallel rank trains on."""

    meta: KVBatchMeta
    columns: dict[str, Any]


@dataclass(frozen=True)
class Consumed:
    """What became of a claim: every sample was trained on, dropped for a reason, or given back."""

    trained: KVBatchMeta
    dropped: dict[str, list[str]]
    """Samples by the name of the filter that dropped them."""
    returned: list[str]
    """Samples beyond what the ranks can share evenly: another claim gets them."""


Train = Callable[[Sequence[RankBatch]], None]
"""One training step on the batches of all ranks."""


def consume(
    client: DataPlaneClient, plan: ConsumePlan, train: Train, *, current_weight_version: int
) -> Consumed:
    """Train once on what a claim brings.

    The samples are acknowledged right before `train` is called: from then on nobody else trains on them, whatever
    becomes of this process. An error before gives them back.

    Raises:
        TimeoutError: there was nothing to claim.
        LeaseExpiredError: it took so long that the samples were given to others; nothing was trained on.
        DataPlaneError, ValueError, KeyError, TypeError: as the store and the filters.
    """
    claimed = client.claim_meta(
        plan.partition_id,
        plan.task_name,
        plan.fields,
        plan.batch_size,
        min_batch_size=plan.min_batch_size,
        timeout_s=plan.timeout_s,
        lease_s=plan.lease_s,
    )
    try:
        kept, dropped = apply_filters(claimed, plan.filters, current_weight_version=current_weight_version)
        client.clear_samples(
            [sample for samples in dropped.values() for sample in samples], plan.partition_id
        )
        num_shared = kept.size - kept.size % plan.dp_world
        trained, left = kept.slice(0, num_shared), kept.slice(num_shared, kept.size)
        batches: list[RankBatch] = []
        if trained.size:
            shards, _ = shard_meta_for_dp(trained, plan.dp_world)
            for shard in shards:
                columns = read_columns(client, shard, plan.fields, pad_values=plan.pad_values)
                batches.append(RankBatch(shard, columns))
        client.release(left)
        client.acknowledge(trained)
    except BaseException:
        client.release(claimed)
        raise
    if batches:
        train(batches)
    client.clear_samples(trained.sample_ids, plan.partition_id)
    return Consumed(trained, dropped, left.sample_ids)


def apply_filters(
    meta: KVBatchMeta, filters: Sequence[BaseRolloutFilter], **state: Any
) -> tuple[KVBatchMeta, dict[str, list[str]]]:
    """Return what all filters keep, and the samples that each of them dropped."""
    dropped: dict[str, list[str]] = {}
    for one in filters:
        meta, out = one(meta, **state)
        dropped.setdefault(one.name, []).extend(out.sample_ids)
    return meta, dropped
