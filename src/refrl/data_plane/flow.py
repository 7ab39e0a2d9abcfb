"""From the store to a training step: claim, filter, share among the ranks, read, train, clear."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from refrl.data_plane.base import DataPlaneClient
from refrl.data_plane.column_io import Layout, read_columns, shard_meta_for_dp
from refrl.data_plane.errors import StoreUnavailableError
from refrl.data_plane.filters import BaseRolloutFilter
from refrl.data_plane.metadata import KVBatchMeta

LOOK_UP_S = 0.1
"""Interval at which a flow that waits for samples calls back its caller, which may stop it."""


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
    min_kept: int = 0
    """Fewest samples that the filters must leave: until then they are given back, and claimed again with others."""
    dp_world: int = 1
    layout: Layout = "padded"
    pad_values: Mapping[str, float] = field(default_factory=dict)
    timeout_s: float = 60.0
    lease_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse a plan that could wait for what cannot come.

        Raises:
            ValueError: claims are too small for `min_kept`.
        """
        if self.min_kept > self.batch_size:
            raise ValueError(f"min_kept={self.min_kept} of claims of {self.batch_size}: raise batch_size")


@dataclass(frozen=True)
class RankBatch:
    """What one data-parallel rank trains on."""

    meta: KVBatchMeta
    columns: dict[str, Any]


@dataclass(frozen=True)
class Consumed:
    """What became of the claims: every sample was trained on, dropped for a reason, or given back."""

    trained: KVBatchMeta
    dropped: dict[str, list[str]]
    """Samples by the name of the filter that dropped them."""
    returned: list[str]
    """Samples beyond what the ranks can share evenly: another claim gets them."""


Train = Callable[[Sequence[RankBatch]], None]
"""One training step on the batches of all ranks."""
OnDrop = Callable[[str, KVBatchMeta], None]
"""Called with the samples that the filter of this name dropped, when they are cleared."""


def _nothing(*words: Any) -> None:
    return None


def consume(
    client: DataPlaneClient,
    plan: ConsumePlan,
    train: Train,
    *,
    current_weight_version: int,
    on_wait: Callable[[], None] = _nothing,
    on_drop: OnDrop = _nothing,
) -> Consumed:
    """Train once on what claims bring.

    The samples are acknowledged right before `train` is called: from then on they are not served again, even if
    this process crashes. An error before returns them.

    Args:
        client: of the store.
        plan: what is taken.
        train: called once, unless nothing is left.
        current_weight_version: of the policy that is trained.
        on_wait: called about every `LOOK_UP_S` while there are not enough samples; what it raises ends the wait.
        on_drop: called for each filter that dropped samples.

    Raises:
        TimeoutError: there was not enough to claim.
        LeaseExpiredError: it took so long that the samples were given to others; nothing was trained on.
        DataPlaneError, ValueError, KeyError, TypeError: as the store and the filters.
    """
    dropped: dict[str, list[str]] = {}
    while True:
        claimed = _claim(client, plan, on_wait)
        try:
            kept, out = apply_filters(claimed, plan.filters, current_weight_version=current_weight_version)
            for name, part in out:
                client.clear_samples(part.sample_ids, plan.partition_id)
                dropped.setdefault(name, []).extend(part.sample_ids)
                if part.size:
                    on_drop(name, part)
            if kept.size >= plan.min_kept:
                trained, left, batches = _shared(client, plan, kept)
                break
            client.release(kept)
        except StoreUnavailableError:
            raise  # nothing can be given back to it; the leases end by themselves
        except BaseException:
            client.release(claimed)
            raise
    if batches:
        train(batches)
    client.clear_samples(trained.sample_ids, plan.partition_id)
    return Consumed(trained, dropped, left.sample_ids)


def apply_filters(
    meta: KVBatchMeta, filters: Sequence[BaseRolloutFilter], **state: Any
) -> tuple[KVBatchMeta, list[tuple[str, KVBatchMeta]]]:
    """Return what all filters keep, and (name, what it dropped) of each."""
    dropped: list[tuple[str, KVBatchMeta]] = []
    for one in filters:
        meta, out = one(meta, **state)
        dropped.append((one.name, out))
    return meta, dropped


def _claim(client: DataPlaneClient, plan: ConsumePlan, on_wait: Callable[[], None]) -> KVBatchMeta:
    """Claim as planned, and ask the caller now and then while that waits."""
    end = time.monotonic() + plan.timeout_s
    while True:
        left = end - time.monotonic()
        try:
            return client.claim_meta(
                plan.partition_id,
                plan.task_name,
                plan.fields,
                plan.batch_size,
                min_batch_size=max(plan.min_batch_size, plan.min_kept),
                timeout_s=min(left, LOOK_UP_S),
                lease_s=plan.lease_s,
            )
        except TimeoutError as error:
            on_wait()
            if left <= LOOK_UP_S:
                raise TimeoutError(f"{error} (waited for {plan.timeout_s:g} s in all)") from error


def _shared(
    client: DataPlaneClient, plan: ConsumePlan, kept: KVBatchMeta
) -> tuple[KVBatchMeta, KVBatchMeta, list[RankBatch]]:
    """Read what the ranks can share evenly, and take it for good; return it, the rest, and the ranks' batches."""
    num_shared = kept.size - kept.size % plan.dp_world
    trained, left = kept.slice(0, num_shared), kept.slice(num_shared, kept.size)
    batches: list[RankBatch] = []
    if trained.size:
        for shard in shard_meta_for_dp(trained, plan.dp_world)[0]:
            columns = read_columns(client, shard, plan.fields, layout=plan.layout, pad_values=plan.pad_values)
            batches.append(RankBatch(shard, columns))
    client.release(left)
    client.acknowledge(trained)
    return trained, left, batches
