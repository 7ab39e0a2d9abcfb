"""TransferQueue's `BatchMeta` as a table of rows, whichever release is installed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from seatrial.relations.contracts.tables import Cell, Column, Table, TableOperation
from seatrial.targets.common.target import Gone, find_name, release

OWN = ("reward", "text")
"""Columns that are kept as metadata of the user; lists are that of the storage, and ids the shapes of a field."""


class TransferQueueTables:
    """Metadata of rows that is selected, divided and joined; see `contracts.RowTables`."""

    table_columns: frozenset[Column] = frozenset(("ids", "reward", "text", "list"))
    table_operations: frozenset[TableOperation] = frozenset(("select", "restore", "chunk", "concat", "union"))

    def __init__(self) -> None:
        """Find the class, which may keep metadata row by row in an older release."""
        self.meta_class = find_name("TransferQueue", ["transfer_queue.metadata:BatchMeta"])
        if "field_schema" not in inspect.signature(self.meta_class.__init__).parameters:
            raise Gone(f"BatchMeta of TransferQueue {release('TransferQueue')} keeps metadata row by row")

    def operate(
        self, operation: TableOperation, tables: Sequence[Table], numbers: Sequence[int]
    ) -> list[list[dict[str, Cell]]]:
        starts = [0] * len(tables) if operation == "union" else [100 * place for place in range(len(tables))]
        metas = [self._meta(table, start) for table, start in zip(tables, starts, strict=True)]
        return [_rows(meta) for meta in self._do(operation, metas, numbers)]

    def _do(self, operation: TableOperation, metas: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
        meta = metas[0]
        if operation == "select":
            return [meta.select_samples(list(numbers))]
        if operation == "restore":
            meta.reorder([list(numbers).index(place) for place in range(meta.size)])
            return [meta]
        if operation == "chunk":
            return list(meta.chunk(numbers[0]))
        if operation == "concat":
            return [self.meta_class.concat(list(metas))]
        return [meta.union(metas[1])]

    def _meta(self, table: Table, first: int) -> Any:
        columns = table[0].keys()
        schema = {}
        if "ids" in columns:
            shapes = [row["ids"] for row in table]
            schema["ids"] = {"dtype": "int64", "shape": None, "is_nested": True, "per_sample_shapes": shapes}
        return self.meta_class(
            global_indexes=list(range(first, first + len(table))),
            partition_ids=["train"] * len(table),
            field_schema=schema,
            custom_meta=[{name: row[name] for name in OWN if name in row} for row in table],
            _custom_backend_meta=[{name: row[name] for name in ("list",) if name in row} for row in table],
        )


def _rows(meta: Any) -> list[dict[str, Cell]]:
    shapes = meta.field_schema["ids"]["per_sample_shapes"] if "ids" in meta.field_schema else None
    return [
        {
            **({} if shapes is None else {"ids": tuple(shapes[place])}),
            **meta.custom_meta[place],
            **meta._custom_backend_meta[place],
        }
        for place in range(meta.size)
    ]


ADAPTERS: dict[str, type[Any]] = {"tables": TransferQueueTables}
