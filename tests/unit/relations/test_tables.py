"""The laws of tables of rows: columns as lists obey, and a fault planted in one line is seen by the law about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from seatrial.relations.contracts.tables import Cell, Column, Table, TableOperation
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

(RELATION,) = select(["R5.tables"])
Columns = dict[str, list[Cell]]


@dataclass
class Lists:
    """Tables as a list a column; the ids are the tensors. A fault is one line that differs."""

    fault: str = ""
    table_columns: frozenset[Column] = frozenset(("ids", "reward", "text", "list"))
    table_operations: frozenset[TableOperation] = frozenset(
        ("select", "restore", "chunk", "split", "concat", "repeat", "tile", "union", "pad")
    )

    def operate(
        self, operation: TableOperation, tables: Sequence[Table], numbers: Sequence[int]
    ) -> list[list[dict[str, Cell]]]:
        """Do it to columns, and read the rows of what it gives."""
        columns = [{name: [row[name] for row in table] for name in table[0]} for table in tables]
        given = getattr(self, f"_{operation}")(*columns, *([numbers] if numbers else []))
        return [
            [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]
            for table in given
        ]

    def _at(self, table: Columns, places: Sequence[int]) -> Columns:
        return {name: [values[place] for place in places] for name, values in table.items()}

    def _select(self, table: Columns, places: Sequence[int]) -> list[Columns]:
        chosen = self._at(table, places)
        if self.fault == "texts left where they were":
            chosen["text"] = table["text"]
        return [chosen]

    def _restore(self, table: Columns, places: Sequence[int]) -> list[Columns]:
        if self.fault == "taken and not put back":
            return [self._at(table, places)]
        return [self._at(table, [places.index(place) for place in range(len(places))])]

    def _chunk(self, table: Columns, numbers: Sequence[int]) -> list[Columns]:
        return self._split(table, [len(table["ids"]) // numbers[0]])

    def _split(self, table: Columns, numbers: Sequence[int]) -> list[Columns]:
        num_rows = len(table["ids"])
        last = num_rows // numbers[0] * numbers[0] if self.fault == "rest dropped" else num_rows
        places = range(num_rows)
        return [self._at(table, places[start : start + numbers[0]]) for start in range(0, last, numbers[0])]

    def _concat(self, *tables: Columns) -> list[Columns]:
        joined = {name: [value for table in tables for value in table[name]] for name in tables[0]}
        if self.fault == "ids cut to the first width":
            width = max(len(ids) for ids in _ids(tables[0]))
            joined["ids"] = [ids[:width] for ids in _ids(joined)]
        if self.fault == "arrays of equal lists":
            rows = [tables[0], *tables[1:]]
            flat = [{len(ids) for ids in _ids(table, "list")} for table in rows]
            if len(flat[0]) == 1 and flat[1] != flat[0]:
                raise ValueError("all the input arrays must have the same number of dimensions")
        return [joined]

    def _repeat(self, table: Columns, numbers: Sequence[int]) -> list[Columns]:
        num_rows = len(table["ids"])
        repeated = self._at(table, [place for place in range(num_rows) for _ in range(numbers[0])])
        if self.fault == "lists tiled":
            repeated["list"] = table["list"] * numbers[0]
        return [repeated]

    def _tile(self, table: Columns, numbers: Sequence[int]) -> list[Columns]:
        return [self._at(table, [*range(len(table["ids"]))] * numbers[0])]

    def _union(self, one: Columns, other: Columns) -> list[Columns]:
        return [{**one, **other} if self.fault != "second half lost" else one]

    def _pad(self, table: Columns, numbers: Sequence[int]) -> list[Columns]:
        num_rows = len(table["ids"])
        more = -num_rows % numbers[0]
        places = [*range(num_rows), *(place % num_rows for place in range(more))]
        padded = self._at(table, places)
        kept = num_rows - (numbers[0] if self.fault == "always unpadded" and not more else 0)
        return [padded, self._at(padded, range(kept))]


def _ids(table: Columns, name: str = "ids") -> list[Any]:
    return list(table[name])


def broken(stack: Lists, *, tidy: bool = False) -> list[str]:
    """Return the laws that tables break, and those during which they raise an exception."""
    details = run_relation(RELATION, stack, tidy=tidy).details
    return [*details.get("laws_broken", ()), *(law for one in details["raises"] for law in one["laws"])]


def test_plain_lists_obey() -> None:
    """On every law."""
    verdict = run_relation(RELATION, Lists())
    assert verdict.outcome is Outcome.PASS
    assert not verdict.details["laws_not_exercised"]


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("texts left where they were", "rows at places"),
        ("taken and not put back", "rows put back"),
        ("rest dropped", "parts of a size, the last smaller"),
        ("ids cut to the first width", "tables in a row, of unequal sizes"),
        ("arrays of equal lists", "tables in a row, lists of one length and of several"),
        ("lists tiled", "each row several times"),
        ("second half lost", "columns of two tables"),
        ("always unpadded", "padded to a multiple, what it has"),
    ],
)
def test_a_planted_fault_is_seen(fault: str, law: str) -> None:
    """By the law about it."""
    assert law in broken(Lists(fault))


@pytest.mark.parametrize(
    "fault",
    [
        "texts left where they were",
        "taken and not put back",
        "ids cut to the first width",
        "arrays of equal lists",
    ],
)
def test_tidy_tables_hide_faults(fault: str) -> None:
    """Rows in their order, of one length."""
    assert broken(Lists(fault), tidy=True) == []


def test_what_a_stack_has_not_is_named() -> None:
    """An operation, and a kind of column."""
    stack = Lists(table_columns=frozenset(("ids", "text")), table_operations=frozenset(("select", "concat")))
    verdict = run_relation(RELATION, stack)
    assert verdict.outcome is Outcome.PASS
    assert "tables in a row, lists of one length and of several" in verdict.details["laws_not_exercised"]
    assert set(verdict.details["laws"]) == {"rows at places", "tables in a row, of unequal sizes"}
