"""verl's `DataProto` as a table of rows, whichever release is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from seatrial.relations.contracts.tables import Cell, Column, Table, TableOperation
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.tables import TENSORS, columns_of, rows_of, width_of
from seatrial.targets.common.target import find_name

EQUAL_LISTS = KnownFailure(
    "from_dict makes lists of one length an array of two dimensions, which no concat joins to others",
    finding="verl: lists of one length in a DataProto",
)


class VerlTables(KnowsFailures):
    """`DataProto` of tensors and lists; its tables have one width, as verl pads prompts and responses to lengths."""

    table_columns: frozenset[Column] = frozenset(("ids", "reward", "text", "list"))
    table_operations: frozenset[TableOperation]
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        EQUAL_LISTS.of("R5.tables/tables in a row, lists of one length and of several"),
    )

    def __init__(self) -> None:
        """Find the class, and what it can do; releases before 0.5 cannot split."""
        self.proto = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        self.pad = find_name("verl", ["verl.protocol:pad_dataproto_to_divisor"])
        self.unpad = find_name("verl", ["verl.protocol:unpad_dataproto"])
        self.reverse = find_name("verl", ["verl.utils.seqlen_balancing:get_reverse_idx"])
        always: set[TableOperation] = {
            "select",
            "restore",
            "chunk",
            "concat",
            "repeat",
            "tile",
            "union",
            "pad",
        }
        self.table_operations = frozenset(always | {"split"} if hasattr(self.proto, "split") else always)

    def operate(
        self, operation: TableOperation, tables: Sequence[Table], numbers: Sequence[int]
    ) -> list[list[dict[str, Cell]]]:
        width = width_of(tables)
        protos = [self._proto_of(columns_of(table, width)) for table in tables]
        return [
            rows_of({**({} if proto.batch is None else dict(proto.batch.items())), **proto.non_tensor_batch})
            for proto in self._do(operation, protos, numbers)
        ]

    def _proto_of(self, columns: dict[str, Any]) -> Any:
        tensors = {name: values for name, values in columns.items() if name in TENSORS}
        lists = {name: values for name, values in columns.items() if name not in TENSORS}
        return self.proto.from_dict(tensors=tensors, non_tensors=lists)

    def _do(self, operation: TableOperation, protos: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
        proto = protos[0]
        if operation == "select":
            return [proto.select_idxs(list(numbers))]
        if operation == "restore":
            proto.reorder(torch.tensor(self.reverse(list(numbers))))
            return [proto]
        if operation in ("chunk", "split"):
            return list(getattr(proto, operation)(numbers[0]))
        if operation in ("repeat", "tile"):
            return [proto.repeat(numbers[0], interleave=operation == "repeat")]
        if operation == "concat":
            return [self.proto.concat(list(protos))]
        if operation == "union":
            return [proto.union(protos[1])]
        padded, size = self.pad(proto, numbers[0])
        return [padded, self.unpad(padded, size)]


ADAPTERS: dict[str, type[Any]] = {"tables": VerlTables}
