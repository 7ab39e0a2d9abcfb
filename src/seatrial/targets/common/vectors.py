"""Vectors of unequal widths that stand for the numbers of rows, as evaluations of texts gather them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seatrial.relations.contracts.loops import width_of_row

FILL = -100
"""What narrower rows are filled with at their end."""


def vectors(rows: Sequence[int]) -> Tensor:
    """Return a batch [rows, the widest]; each row holds its own number."""
    width = max(map(width_of_row, rows))
    return torch.tensor([[row] * width_of_row(row) + [FILL] * (width - width_of_row(row)) for row in rows])


def numbers(batch: Sequence[Sequence[float]]) -> list[int]:
    """Return the number of each row of such a batch; -1 for one that has lost or changed a part."""
    found = []
    for values in batch:
        row = int(values[0])
        width = width_of_row(row)
        right = [row] * width + [FILL] * (len(values) - width)
        found.append(row if len(values) >= width and [int(value) for value in values] == right else -1)
    return found
