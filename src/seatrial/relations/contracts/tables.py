"""Contract of tables of rows: a batch as several columns, some of them tensors and some not, that stay aligned.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

Column = Literal["ids", "reward", "text", "list"]
"""`ids` are token ids, of unequal numbers, which a stack keeps as a padded tensor with a mask; `reward` a number of a
row, kept as a tensor in float32; `text` a string; `list` a list of ids, kept as one, without padding."""
Cell = tuple[int, ...] | float | str
TableRow = Mapping[str, Cell]
Table = Sequence[TableRow]
"""Every row has the same columns."""
TableOperation = Literal["select", "restore", "chunk", "split", "concat", "repeat", "tile", "union", "pad"]
"""What is done to one table (to several for `concat` and `union`), with the numbers that say how:

- `select`, places: the rows at these places, in this order; a place may be named twice or not at all.
- `restore`, places: row i goes to place `places[i]`, as where a sorted batch is put back.
- `chunk`, (n,): n tables of equally many rows; the number of rows is a multiple of n.
- `split`, (n,): tables of n rows, the last of what is left.
- `concat`: the rows of all tables, in their order.
- `repeat`, (n,): each row n times in succession. `tile`, (n,): all rows, n times over.
- `union`: the columns of all tables, which have the same rows.
- `pad`, (n,): two tables: one of a multiple of n rows, the given ones first, then copies of some of them; and that one
  with the copies taken away again.
"""


@runtime_checkable
class RowTables(Protocol):
    """Operations on a stack's batches; each result is read back from the stack's own tensors and lists."""

    table_columns: frozenset[Column]
    """Those that a table may have."""
    table_operations: frozenset[TableOperation]
    """Those that the stack has."""

    def operate(
        self, operation: TableOperation, tables: Sequence[Table], numbers: Sequence[int]
    ) -> list[list[dict[str, Cell]]]:
        """Return the tables that an operation gives."""
        ...
