"""NeMo RL's `BatchedDataDict` as a table of rows, from whichever checkout is on the path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from seatrial.relations.contracts.tables import Cell, Column, Table, TableOperation
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.tables import PAD, columns_of, rows_of, width_of
from seatrial.targets.nemo_rl.parts import part

TOO_MANY_PARTS = KnownFailure(
    "chunk refuses parts of no more rows than the part's own number: it compares the number with the wrong bound",
    finding="NeMo RL: chunks of few rows",
)


class Tables(KnowsFailures):
    """`BatchedDataDict`, cut by `chunk` and by `slice`; `from_batches` joins tables of several widths."""

    table_columns: frozenset[Column] = frozenset(("ids", "reward", "text", "list"))
    table_operations: frozenset[TableOperation] = frozenset(
        ("select", "restore", "chunk", "split", "concat", "repeat")
    )

    known_failures: ClassVar[Sequence[KnownFailure]] = (TOO_MANY_PARTS.of("R5.tables/equal parts"),)

    def __init__(self) -> None:
        """Find the class."""
        self.batch_class = part("distributed.batched_data_dict").BatchedDataDict

    def operate(
        self, operation: TableOperation, tables: Sequence[Table], numbers: Sequence[int]
    ) -> list[list[dict[str, Cell]]]:
        batches = [self.batch_class(columns_of(table, width_of([table]))) for table in tables]
        return [rows_of(batch) for batch in self._do(operation, batches, numbers)]

    def _do(self, operation: TableOperation, batches: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
        batch = batches[0]
        if operation == "select":
            return [batch.select_indices(list(numbers))]
        if operation == "restore":
            batch.reorder_data(list(numbers))
            return [batch]
        if operation == "chunk":
            return [batch.chunk(rank, numbers[0]) for rank in range(numbers[0])]
        if operation == "split":
            starts = range(0, batch.size, numbers[0])
            return [batch.slice(start, min(start + numbers[0], batch.size)) for start in starts]
        if operation == "repeat":
            return [batch.repeat_interleave(numbers[0])]
        return [self.batch_class.from_batches(list(batches), pad_value_dict={"ids": PAD})]


class ShardedTables(Tables):
    """The same, of which `shard_by_batch_size` makes the parts for data-parallel ranks."""

    table_operations = frozenset(("chunk",))
    known_failures: ClassVar[Sequence[KnownFailure]] = ()

    def _do(self, operation: TableOperation, batches: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
        return list(batches[0].shard_by_batch_size(numbers[0]))
