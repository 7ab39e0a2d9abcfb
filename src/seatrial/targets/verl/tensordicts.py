"""verl's batches as its engines and workers take them apart: `tensordict_utils`, iterators, items, dynamic batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.tables import Cell, Column, Table, TableOperation
from seatrial.targets.common.tables import TENSORS, columns_of, rows_of, width_of
from seatrial.targets.common.target import find_name
from seatrial.targets.verl.tables import VerlTables

UTILS = "verl.utils.tensordict_utils"
LONGEST_GROUP = 2
"""Rows that a dynamic batch of the adapter holds at most."""


class VerlTensorDicts:
    """A `TensorDict` of padded tensors and lists, by the functions of `tensordict_utils`."""

    table_columns: frozenset[Column] = frozenset(("ids", "reward", "text", "list"))
    table_operations: frozenset[TableOperation] = frozenset(
        ("select", "chunk", "split", "concat", "union", "pad")
    )

    def __init__(self) -> None:
        """Find the functions."""
        self.make = find_name("verl", [f"{UTILS}:get_tensordict"])
        self.select = find_name("verl", [f"{UTILS}:index_select_tensor_dict"])
        self.iterate = find_name("verl", [f"{UTILS}:make_iterator"])
        self.union = find_name("verl", [f"{UTILS}:union_tensor_dict"])
        self.chunk = find_name("verl", [f"{UTILS}:chunk_tensordict"])
        self.concat = find_name("verl", [f"{UTILS}:concat_tensordict"])
        self.pad = find_name("verl", [f"{UTILS}:pad_to_divisor"])
        self.unpad = find_name("verl", [f"{UTILS}:unpad"])

    def operate(
        self, operation: TableOperation, tables: Sequence[Table], numbers: Sequence[int]
    ) -> list[list[dict[str, Cell]]]:
        width = width_of(tables)
        batches = [self.make(self.columns(table, width)) for table in tables]
        return [self.rows(batch) for batch in self._do(operation, batches, numbers)]

    def columns(self, table: Table, width: int) -> dict[str, Any]:
        """Return the columns of a table: tensors, and lists of what is none."""
        return columns_of(table, width)

    def rows(self, batch: Any) -> list[dict[str, Cell]]:
        """Return the rows of a batch."""
        return rows_of({name: _listed(batch[name]) for name in batch.keys()})  # noqa: SIM118  no mapping

    def _do(self, operation: TableOperation, batches: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
        batch = batches[0]
        if operation == "select":
            return [self.select(batch, list(numbers))]
        if operation == "chunk":
            return list(self.chunk(batch, numbers[0]))
        if operation == "split":
            if len(batch) % numbers[0] == 0:
                return list(self.iterate(batch, mini_batch_size=numbers[0], epochs=1))
            starts = range(0, len(batch), numbers[0])
            return [
                self.select(batch, list(range(start, min(start + numbers[0], len(batch)))))
                for start in starts
            ]
        if operation == "concat":
            return [self.concat(list(batches))]
        if operation == "union":
            return [self.union(batch, batches[1])]
        padded, size = self.pad(batch, numbers[0])
        return [padded, self.unpad(padded, size)]


class VerlNestedTensorDicts(VerlTensorDicts):
    """The same with ids of unequal lengths as a nested tensor, without padding."""

    table_operations: frozenset[TableOperation] = frozenset(("select", "chunk", "split", "concat", "union"))

    def columns(self, table: Table, width: int) -> dict[str, Any]:
        given = columns_of(table, width)
        if "ids" in given:
            del given["mask"]
            rows = [torch.tensor(row["ids"]) for row in table]
            given["ids"] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        return given

    def rows(self, batch: Any) -> list[dict[str, Cell]]:
        columns = {name: _listed(batch[name]) for name in batch.keys()}  # noqa: SIM118  no mapping
        ids = columns.pop("ids", None)
        read = rows_of(columns) if columns else [{} for _ in range(len(batch))]
        if ids is not None:
            for row, own in zip(read, ids.unbind(), strict=True):
                row["ids"] = tuple(own.tolist())
        return read


class VerlItems(VerlTables):
    """`DataProto` read item by item and by slices, collated again, iterated, and put into dynamic batches."""

    table_operations: frozenset[TableOperation] = frozenset(("select", "split", "restore", "chunk"))
    known_failures = ()

    def __init__(self) -> None:
        """Find the functions beyond those of `VerlTables`."""
        super().__init__()
        self.table_operations = VerlItems.table_operations
        self.collate = find_name("verl", ["verl.protocol:collate_fn"])
        self.prepare = find_name("verl", ["verl.utils.seqlen_balancing:prepare_dynamic_batch"])
        self.put_back = find_name("verl", ["verl.utils.seqlen_balancing:restore_dynamic_batch"])

    def _do(self, operation: TableOperation, protos: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
        proto = protos[0]
        if operation == "select":
            return [self.collate([proto[place] for place in numbers])]
        if operation == "chunk":
            size = len(proto) // numbers[0]
            return list(proto.make_iterator(mini_batch_size=size, epochs=1))
        if operation == "split":
            starts = range(0, len(proto), numbers[0])
            return [proto[start : min(start + numbers[0], len(proto))] for start in starts]
        # Rows are given in the order that leads to the right one: the inverse of where each goes.
        shuffled = proto.select_idxs([list(numbers).index(place) for place in range(len(proto))])
        return [self._through_dynamic_batches(shuffled)]

    def _through_dynamic_batches(self, proto: Any) -> Any:
        """Return a batch that was divided by length, with its tensors put back and its lists by the same places."""
        proto.batch["input_ids"], proto.batch["attention_mask"] = proto.batch["ids"], proto.batch["mask"]
        width = int(proto.batch["mask"].sum(1).max())
        parts, places = self.prepare(proto, max_token_len=LONGEST_GROUP * width)
        order = list(chain.from_iterable(places))
        tensors = {
            name: self.put_back(torch.cat([part.batch[name] for part in parts]), places)
            for name in TENSORS
            if name in proto.batch.keys()  # noqa: SIM118  no mapping
        }
        lists: dict[str, Any] = {}
        for name in proto.non_tensor_batch:
            joined = [value for part in parts for value in part.non_tensor_batch[name]]
            lists[name] = [joined[order.index(row)] for row in range(len(order))]
        return self.proto.from_dict(tensors=tensors, non_tensors=lists)


def _listed(column: Any) -> Any:
    """Return a column as a tensor, or as a list of values."""
    if isinstance(column, Tensor):
        return column
    return column.tolist() if hasattr(column, "tolist") else list(column)


ADAPTERS: dict[str, type[Any]] = {
    "tables-tensordict": VerlTensorDicts,
    "tables-nested": VerlNestedTensorDicts,
    "tables-items": VerlItems,
}
