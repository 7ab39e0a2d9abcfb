"""Cells of a row, read strictly: what is not a number of the right kind is damage, and is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from seatrial.errors import BlockedError
from seatrial.evidence.readers.numbers import MAX_STEP, decode

Cell = TypeVar("Cell")
Rows = Iterator[tuple[str, Mapping[str, Any]]]


def integer(value: Any) -> int:
    """Return a whole number of 64 bits.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not int or not -MAX_STEP - 1 <= value <= MAX_STEP:
        raise ValueError(f"{_shown(value)} is no whole number of 64 bits")
    return value


def number(value: Any) -> float:
    """Return a number, NaN and infinities included; null is NaN, an integer beyond the range of floats infinite.

    Raises:
        ValueError: it is none.
    """
    found = decode(value)
    if found is None:
        raise ValueError(f"{_shown(value)} is no number")
    return found.value


def text(value: Any) -> str:
    """Return a text.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is no text")
    return value


def flag(value: Any) -> bool:
    """Return a truth value.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is neither true nor false")
    return value


def integers(value: Any) -> tuple[int, ...]:
    """Return whole numbers.

    Raises:
        ValueError: one is none, or it is no list.
    """
    items = _listed(value)
    if all(type(item) is int for item in items) and (
        not items or (min(items) >= 0 and max(items) <= MAX_STEP)
    ):
        return tuple(items)  # the usual case, quickly
    return tuple(integer(item) for item in items)


def numbers(value: Any) -> tuple[float, ...]:
    """Return numbers.

    Raises:
        ValueError: one is none, or it is no list.
    """
    items = _listed(value)
    if all(type(item) is float for item in items):
        return tuple(items)  # the usual case, quickly
    return tuple(number(item) for item in items)


def optional(row: Mapping[str, Any], key: str, read: Callable[[Any], Cell]) -> Cell | None:
    """Return a cell, None where the row has none or null.

    Raises:
        ValueError: the cell is damaged; the message names it.
    """
    if row.get(key) is None:
        return None
    return required(row, key, read)


def required(row: Mapping[str, Any], key: str, read: Callable[[Any], Cell]) -> Cell:
    """Return a cell.

    Raises:
        ValueError: it is missing or damaged; the message names it.
    """
    if row.get(key) is None:
        raise ValueError(f"it has no {key}")
    try:
        return read(row[key])
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


@contextmanager
def named(place: str) -> Iterator[None]:
    """Name the place of a damaged row.

    Raises:
        BlockedError: the row is damaged.
    """
    try:
        yield
    except ValueError as error:
        raise BlockedError(f"{place} is damaged: {error}") from error


def lines(file: Path) -> Rows:
    """Yield (place, object) of every line of a file.

    Raises:
        BlockedError: a line holds no JSON object, or there is none.
        OSError: the file cannot be read.
    """
    count = 0
    with file.open(encoding="utf-8", errors="replace") as stream:
        for count, line in enumerate(stream, start=1):
            place = f"{file} line {count}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise BlockedError(f"{place} is damaged: {error}") from error
            if not isinstance(row, dict):
                raise BlockedError(f"{place} is damaged: it is no row")
            yield place, row
    if not count:
        raise BlockedError(f"{file} is empty: the step left no rows, or they were lost")


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{_shown(value)} is no list")
    return value


def _shown(value: Any) -> str:
    """Return the beginning of a value; an integer of thousands of digits cannot be printed."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."
