"""Tables of rows as stacks keep them: padded tensors and lists, and the rows that are read back from those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.tables import Cell, Table

PAD = 0
TENSORS = ("ids", "mask", "reward")


def width_of(tables: Sequence[Table]) -> int:
    """Return the number of ids of the longest row; 0 where tables have none."""
    return max((len(row["ids"]) for table in tables for row in table if "ids" in row), default=0)  # type: ignore[arg-type]


def columns_of(table: Table, width: int) -> dict[str, Any]:
    """Return `ids` and `mask` as int64 [B, width], padded on the right, `reward` as float32 [B], others as lists."""
    columns: dict[str, Any] = {name: [row[name] for row in table] for name in table[0]}
    if "reward" in columns:
        columns["reward"] = torch.tensor(columns["reward"], dtype=torch.float32)
    if "ids" in columns:
        rows = [list(ids) for ids in columns["ids"]]
        columns["ids"] = torch.tensor([ids + [PAD] * (width - len(ids)) for ids in rows])
        columns["mask"] = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in rows])
    if "list" in columns:
        columns["list"] = [list(ids) for ids in columns["list"]]
    return columns


def rows_of(columns: Mapping[str, Any]) -> list[dict[str, Cell]]:
    """Return the rows of such columns; ids are those that the mask shows.

    Raises:
        ValueError: columns have different numbers of rows.
    """
    read: dict[str, list[Cell]] = {}
    for name, values in columns.items():
        if name == "ids":
            shown: Tensor = columns["mask"].bool()
            read[name] = [tuple(ids[on].tolist()) for ids, on in zip(values, shown, strict=True)]
        elif name == "reward":
            read[name] = [float(value) for value in values]
        elif name == "list":
            read[name] = [tuple(int(token) for token in ids) for ids in values]
        elif name == "text":
            read[name] = [str(text) for text in values]
    return [dict(zip(read, cells, strict=True)) for cells in zip(*read.values(), strict=True)]
