"""What a run of a trial of levels 0 to 2 writes, and the check that computes each part again: `outputs.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from seatrial.packaged import read_table


def covered(kind: str) -> dict[str, str]:
    """Return the check that computes a field again, by the field's name or pattern.

    Args:
        kind: of file: a key of `covered` in the table.
    """
    checks: Mapping[str, Sequence[str]] = _table()["covered"].get(kind, {})
    return {name: check for check, names in checks.items() for name in names}


def bounded(kind: str) -> Sequence[str]:
    """Return the fields that other evidence bounds and does not determine."""
    found: Sequence[str] = _table()["bounded"].get(kind, ())
    return found


def uncovered(kind: str) -> Mapping[str, str]:
    """Return why no check computes a field again, by the field's name or pattern."""
    found: Mapping[str, str] = _table()["uncovered"].get(kind, {})
    return found


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = read_table("seatrial.trials", "outputs.yaml")
    return table
