"""What the filters keep at every token, gathered on the device while a batch is sampled and read once at its end.

Shapes: R rows that still run, V vocabulary, M kept ids of a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class KeptRecorder:
    """The kept ids of each row's tokens, in the order in which they were sampled.

    The ids of a step lie end to end (int32), so that a flat distribution, which keeps most of a large vocabulary,
    costs its own ids and does not widen those of the other rows.
    """

    def __init__(self) -> None:
        """Start without a token."""
        self._steps: list[tuple[Sequence[int], Sequence[int]]] = []
        self._ids_M: list[torch.Tensor] = []

    @property
    def has_any(self) -> bool:
        """Whether a filter was on."""
        return bool(self._steps)

    def add(self, rows: Sequence[int], kept_RV: torch.Tensor, counts: Sequence[int]) -> None:
        """Record one token of each of these rows.

        Args:
            rows: the row that each line of `kept_RV` belongs to; not changed afterwards.
            kept_RV: true on kept ids.
            counts: how many each line has. The host knows them, so the device is not waited for.
        """
        self._steps.append((rows, counts))
        self._ids_M.append(torch.nonzero_static(kept_RV, size=sum(counts))[:, 1].int())

    def rows(self, num_rows: int) -> list[tuple[tuple[int, ...], ...]]:
        """Return the kept ids, ascending, of every token of each row."""
        ids = torch.cat(self._ids_M).tolist()
        gathered: list[list[tuple[int, ...]]] = [[] for _ in range(num_rows)]
        start = 0
        for rows, counts in self._steps:
            for row, count in zip(rows, counts, strict=True):
                gathered[row].append(tuple(ids[start : start + count]))
                start += count
        return [tuple(kept) for kept in gathered]
