"""The laws of ready boards: a dictionary obeys; a shared default, any field for all, one mark for all are seen."""

from collections.abc import Sequence

import pytest

from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

SHARED: set[tuple[int, str]] = set()


class Board:
    """Written cells and consumed rows."""

    def __init__(self, fault: str | None) -> None:
        self._fault = fault
        self._written: set[tuple[int, str]] = SHARED if fault == "shared default" else set()
        self._consumed: set[tuple[int, str]] = set()

    def produce(self, rows: Sequence[int], fields: Sequence[str]) -> None:
        """Note cells."""
        self._written |= {(row, name) for row in rows for name in fields}

    def ready(self, fields: Sequence[str], consumer: str) -> list[int]:
        """Return rows."""
        holds = any if self._fault == "any field" else all
        mark = "" if self._fault == "one mark" else consumer
        rows = {row for row, _ in self._written if (row, mark) not in self._consumed}
        return [row for row in rows if holds((row, name) in self._written for name in fields)]

    def consume(self, rows: Sequence[int], consumer: str) -> None:
        """Mark rows."""
        self._consumed |= {(row, "" if self._fault == "one mark" else consumer) for row in rows}


class Boards:
    """A store of the tests."""

    def __init__(self, fault: str | None = None) -> None:
        self._fault = fault
        SHARED.clear()

    def open_board(self, name: str) -> Board:
        """Return a board."""
        return Board(self._fault)


def outcomes(fault: str | None) -> dict[str, Outcome]:
    """Return what each relation says."""
    return {
        relation.id: run_relation(relation, Boards(fault)).outcome
        for relation in select(["R14.ready", "R27.ready"])
    }


def test_a_plain_board_obeys() -> None:
    """Three seeds."""
    assert set(outcomes(None).values()) == {Outcome.PASS}


@pytest.mark.parametrize(
    ("fault", "relation"),
    [("shared default", "R27.ready"), ("any field", "R14.ready"), ("one mark", "R14.ready")],
)
def test_a_planted_fault_is_seen(fault: str, relation: str) -> None:
    """By the relation about it."""
    assert outcomes(fault)[relation] is Outcome.FAIL
