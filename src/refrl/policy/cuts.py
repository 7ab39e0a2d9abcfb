"""Splits the rows of a batch into optimizer steps, and numbers the rows of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

from refrl.algorithms.batching import Batch


def row_numbers(cut: Sequence[tuple[slice | list[int], Batch]], own_rows: Sequence[int]) -> list[list[int]]:
    """Return the rows of each micro-batch, numbered as in the whole batch."""
    return [
        list(own_rows[rows]) if isinstance(rows, slice) else [own_rows[row] for row in rows]
        for rows, _ in cut
    ]


def split_updates(batch: Batch, num_rows: int) -> list[tuple[int, Batch]]:
    """Cut a batch into parts of at most `num_rows` rows; return (first row, part) of each."""
    if batch.num_rows <= num_rows:
        return [(0, batch)]
    starts = range(0, batch.num_rows, num_rows)
    return [(start, batch.rows(slice(start, start + num_rows))) for start in starts]
