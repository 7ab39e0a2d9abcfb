"""Rows into a data plane and out of it, as rollout workers and trainers use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from torch import Tensor

from refrl.data_plane.base import DataPlaneClient
from refrl.data_plane.columns import Columns, Value, pad
from refrl.data_plane.metadata import KVBatchMeta

Layout = Literal["padded", "jagged"]
LENGTHS = "input_lengths"
"""Field and tag: tokens of prompt and completion together."""
PAD_TO = "global_forward_pad_seqlen"
"""Key of `extra_info`: the width that `read_columns` pads to; without it, the longest row."""
JAGGED_FIELDS = frozenset(
    {"input_ids", "token_mask", "generation_logprobs", "prev_logprobs", "reference_policy_logprobs"}
)
"""Fields that have one value a token, and are cut to each row's length on the way in."""


def kv_first_write(
    batch: Columns,
    sample_ids: Sequence[str],
    client: DataPlaneClient,
    partition_id: str,
    *,
    task_name: str = "train",
    tags: Sequence[Mapping[str, Any]] | None = None,
    extra_info: Mapping[str, Any] | None = None,
) -> KVBatchMeta:
    """Put everything that a rollout made of some samples, at once.

    Args:
        batch: fields, `input_lengths` [B] among them. The fields of `JAGGED_FIELDS` may be padded `[B, S]`.
        sample_ids: B ids.
        client: where to.
        partition_id: where to.
        task_name: of the meta that is returned.
        tags: of each sample; `input_lengths` is added to them, so that claims know the lengths.
        extra_info: of the meta that is returned.

    Raises:
        ValueError: no samples, no lengths, or other numbers of rows.
        DataPlaneError: as `put_samples`.
    """
    if not sample_ids:
        raise ValueError("no samples to write: an empty rollout is its maker's error")
    if LENGTHS not in batch:
        raise ValueError(
            f"the batch has no field {LENGTHS!r}: rows cannot be cut to their own length without it"
        )
    lengths = [int(length) for length in batch[LENGTHS]]
    given: Sequence[Mapping[str, Any]] = [{} for _ in sample_ids] if tags is None else tags
    if not len(lengths) == len(given) == len(sample_ids):
        raise ValueError(
            f"{len(sample_ids)} samples, {len(lengths)} lengths and {len(given)} tags: give as many of each"
        )
    stamped = [{**own, LENGTHS: length} for own, length in zip(given, lengths, strict=True)]
    meta = client.put_samples(sample_ids, partition_id, jagged(batch, lengths), stamped)
    return replace(meta, task_name=task_name, sequence_lengths=lengths, extra_info=dict(extra_info or {}))


def jagged(batch: Columns, lengths: Sequence[int]) -> dict[str, Value]:
    """Return the fields with those of `JAGGED_FIELDS` cut to their rows' lengths; others stay.

    Raises:
        ValueError: a field of tokens is shorter than a row.
    """
    cut: dict[str, Value] = {}
    for name, value in batch.items():
        if name not in JAGGED_FIELDS or not isinstance(value, Tensor) or value.is_nested:
            cut[name] = value
            continue
        if value.dim() < 2 or value.shape[1] < max(lengths):
            raise ValueError(
                f"field {name!r} has shape {tuple(value.shape)}, too small for a row of {max(lengths)} tokens"
            )
        cut[name] = [row[:length] for row, length in zip(value, lengths, strict=True)]
    return cut


def read_columns(
    client: DataPlaneClient,
    meta: KVBatchMeta,
    fields: Sequence[str],
    *,
    layout: Layout = "padded",
    pad_values: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return fields of a meta's samples; objects as an array.

    Args:
        client: where from.
        meta: rows, in order; `extra_info` may name the width.
        fields: which.
        layout: `padded` gives rectangles `[B, S, ...]`, right-padded; `jagged` leaves each row its own length.
        pad_values: what fills each field; 0 otherwise.

    Raises:
        ValueError: a row is longer than the width.
        DataPlaneError: as `get_samples`.
    """
    width, fill = meta.extra_info.get(PAD_TO), dict(pad_values or {})
    read = client.get_samples(meta.sample_ids, meta.partition_id, fields)
    if layout == "jagged":
        return read
    return {
        name: pad(value, fill.get(name, 0), width if name in JAGGED_FIELDS else None)
        for name, value in read.items()
    }


def write_columns(client: DataPlaneClient, meta: KVBatchMeta, fields: Columns) -> None:
    """Write further fields of a meta's samples; fields of tokens are cut to `sequence_lengths` where it is known."""
    if fields:
        lengths = meta.sequence_lengths
        values = dict(fields) if lengths is None else jagged(fields, lengths)
        client.put_samples(meta.sample_ids, meta.partition_id, values)


def shard_meta_for_dp(
    meta: KVBatchMeta, dp_world: int, batch_size: int | None = None
) -> tuple[list[KVBatchMeta], list[int] | None]:
    """Return every data-parallel rank's rows, tags and lease with them, and how to put results back in order.

    Args:
        meta: rows of one or more global batches.
        dp_world: ranks.
        batch_size: rows of a global batch: every rank gets its share of each. None: all rows are one.

    Returns:
        The ranks' metas, and for each row of the meta its place in the shards laid end to end; None where that is the
        same order. Nothing is created, lost or read.

    Raises:
        ValueError: no rows, or rows that do not divide.
    """
    size = meta.size if batch_size is None else batch_size
    if not meta.size or dp_world < 1 or size < 1 or meta.size % size or size % dp_world:
        raise ValueError(
            f"{meta.size} rows in batches of {size} cannot be shared by {dp_world} ranks: keep a whole multiple of them"
        )
    share = size // dp_world
    chosen = [
        [start + rank * share + row for start in range(0, meta.size, size) for row in range(share)]
        for rank in range(dp_world)
    ]
    order = [row for rows in chosen for row in rows]
    inverse = [int(place) for place in np.argsort(order)]
    return [meta.subset(rows) for rows in chosen], None if order == sorted(order) else inverse
