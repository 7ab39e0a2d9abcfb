"""R5 of tables: after every operation on a batch, each row has its own ids, reward, text and lists."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.tables import Cell, Table, TableOperation
from seatrial.relations.law import Measure, Relation

NUM_ROWS = 6
NEVER_FLOAT = 2**24
"""float32 cannot represent the next id."""


@dataclass(frozen=True, kw_only=True)
class TableCase(Case):
    """Tables and an operation on them."""

    operation: TableOperation
    tables: tuple[Table, ...]
    numbers: tuple[int, ...]
    seed: int

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values."""
        return {
            "operation": self.operation,
            "tables": [[dict(row) for row in table] for table in self.tables],
            "numbers": list(self.numbers),
            "seed": self.seed,
        }


def _rows(columns: frozenset[str], rng: np.random.Generator, lengths: Sequence[int]) -> list[dict[str, Cell]]:
    """Return rows of which no two have a cell in common; ids are too large for float32 to distinguish."""
    rows: list[dict[str, Cell]] = []
    for row, length in enumerate(lengths):
        first = NEVER_FLOAT + 1 + int(rng.integers(1000)) * 2 + 10_000 * row
        cells: dict[str, Cell] = {
            "ids": tuple(range(first, first + length)),
            "reward": float(np.float32(rng.normal())),
            "text": "".join(rng.choice(list(string.ascii_letters), size=length - 1)) + str(row),
            "list": tuple(range(first, first + length)),
        }
        rows.append({name: cell for name, cell in cells.items() if name in columns})
    return rows


def _tables(
    stack: Any,
    seed: int,
    tidy: bool,
    operation: TableOperation,
    numbers: tuple[int, ...] = (),
    num_tables: int = 1,
) -> TableCase:
    """Return rows of unequal lengths, each table wider than the one before and with fewer rows; equal when tidy."""
    rng = np.random.default_rng([seed, 5])
    columns = frozenset(stack.table_columns)
    tables = []
    for table in range(num_tables):
        own = rng.permutation(NUM_ROWS - table) + 1 + 2 * table
        lengths = [4] * NUM_ROWS if tidy else [int(length) for length in own]
        tables.append(_rows(columns, rng, lengths))
    if operation == "union":
        half = len(columns) // 2
        parts = (sorted(columns)[:half], sorted(columns)[half:])
        tables = [[{name: row[name] for name in part} for row in tables[0]] for part in parts]
    places = numbers
    if operation in ("select", "restore"):
        places = tuple(range(NUM_ROWS)) if tidy else tuple(map(int, rng.permutation(NUM_ROWS)))
    if operation == "select" and not tidy:
        # One row twice, and one not at all.
        places = (*places[:-1], places[0])
    return TableCase(operation=operation, tables=tuple(tables), numbers=places, seed=seed)


def _two_tables(stack: Any, seed: int, tidy: bool) -> TableCase:
    """Return two tables: the lists of the first have one length, those of the second do not."""
    rng = np.random.default_rng([seed, 6])
    columns = frozenset(stack.table_columns)
    tables = (_rows(columns, rng, [3, 3, 3]), _rows(columns, rng, [3, 3, 3] if tidy else [2, 5, 1]))
    return TableCase(operation="concat", tables=tables, numbers=(), seed=seed)


def _excluded(stack: Any, operation: TableOperation, column: str = "") -> str | None:
    if operation not in stack.table_operations:
        return f"table_operations has no {operation}"
    return f"table_columns has no {column}" if column and column not in stack.table_columns else None


ORDER = "tensors taken by the places and lists by their inverse, or left where they were"
WIDTH = "padding cut from a longer row, or from the wrong side; a mask of another table"
OPERATIONS: tuple[tuple[str, TableOperation, dict[str, Any], str], ...] = (
    ("rows at places", "select", {}, ORDER),
    ("rows put back", "restore", {}, ORDER),
    ("equal parts", "chunk", {"numbers": (3,)}, "parts of another size for columns that are not tensors"),
    ("parts of a size, the last smaller", "split", {"numbers": (4,)}, "the rest that is dropped"),
    ("parts of one row", "split", {"numbers": (1,)}, "a dimension that is squeezed away"),
    ("tables in a row, of unequal sizes", "concat", {"num_tables": 3}, WIDTH),
    ("each row several times", "repeat", {"numbers": (3,)}, "lists tiled and tensors interleaved"),
    ("all rows several times", "tile", {"numbers": (3,)}, "lists tiled and tensors interleaved"),
    ("columns of two tables", "union", {}, "a column that is lost"),
)

TABLES = Relation(
    id="R5.tables",
    name="rows-stay-whole",
    component="row_tables",
    statement="After every operation on a batch, each row has its own ids, reward, text and lists.",
    catalogue="SB055 SB071 SB082 SB089 SB096 SB148 SB370",
    cost="CPU, milliseconds",
)


def rows_are_right(stack: Any, case: TableCase) -> Measure:
    """Compare the tables after an operation with what the operation is defined to give."""
    given = stack.operate(case.operation, case.tables, case.numbers)
    return Measure.count(_wrong(given, right_tables(case)), f"cells that are wrong after {case.operation}")


def _wrong(given: Sequence[Table], right: Sequence[Table]) -> list[str]:
    """Return where tables differ, in words."""
    found = []
    if [len(table) for table in given] != [len(table) for table in right]:
        found.append(
            f"rows of the tables: {[len(table) for table in given]}, not {[len(table) for table in right]}"
        )
    for number, (table, own) in enumerate(zip(given, right, strict=False)):
        for place, (row, wanted) in enumerate(zip(table, own, strict=False)):
            found += [
                f"table {number}, row {place}: {name} is {row.get(name)!r}, not {wanted.get(name)!r}"
                for name in sorted({*row, *wanted})
                if not _same(row.get(name), wanted.get(name))
            ]
    return found


def _same(one: Cell | None, other: Cell | None) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return one == other and isinstance(one, type(other))


def right_tables(case: TableCase) -> list[list[dict[str, Cell]]]:
    """Return what an operation gives, row by row; for `pad` the table without the copies."""
    rows = [dict(row) for row in case.tables[0]]
    number = case.numbers[0] if case.numbers else 0
    if case.operation == "select":
        return [[rows[place] for place in case.numbers]]
    if case.operation == "restore":
        return [[rows[case.numbers.index(place)] for place in range(len(rows))]]
    if case.operation == "chunk":
        size = len(rows) // number
        return [rows[start : start + size] for start in range(0, len(rows), size)]
    if case.operation == "split":
        return [rows[start : start + number] for start in range(0, len(rows), number)]
    if case.operation == "concat":
        return [[dict(row) for table in case.tables for row in table]]
    if case.operation == "repeat":
        return [[row for row in rows for _ in range(number)]]
    if case.operation == "tile":
        return [rows * number]
    if case.operation == "union":
        return [
            [dict(pair for row in parts for pair in row.items()) for parts in zip(*case.tables, strict=True)]
        ]
    return [rows]


for name, operation, arguments, suspects in OPERATIONS:
    TABLES.law(
        name,
        suspects,
        cases=partial(_tables, operation=operation, **arguments),
        excluded=partial(_excluded, operation=operation),
    )(rows_are_right)
TABLES.law(
    "tables in a row, lists of one length and of several",
    "lists of one length kept as an array of two dimensions",
    cases=_two_tables,
    excluded=partial(_excluded, operation="concat", column="list"),
)(rows_are_right)


def padding_copies_rows(stack: Any, case: TableCase) -> Measure:
    """Check that padded rows are complete copies of given rows, as few as needed, and that unpadding removes them."""
    padded, unpadded = stack.operate(case.operation, case.tables, case.numbers)
    rows = [dict(row) for row in case.tables[0]]
    (divisor,) = case.numbers
    wrong = _wrong([padded[: len(rows)], unpadded], [rows, rows])
    if len(padded) != math.ceil(len(rows) / divisor) * divisor:
        wrong.append(f"{len(padded)} rows, padded to a multiple of {divisor}")
    wrong += [f"a copy of no row: {row}" for row in padded[len(rows) :] if row not in rows]
    return Measure.count(wrong, "rows that are wrong after padding or unpadding")


for what, divisor in (("four", 4), ("what it has", NUM_ROWS), ("of more rows than it has", 16)):
    TABLES.law(
        f"padded to a multiple, {what}",
        "more copies removed than were added, copies of some columns only",
        cases=partial(_tables, operation="pad", numbers=(divisor,)),
        excluded=partial(_excluded, operation="pad"),
    )(padding_copies_rows)
