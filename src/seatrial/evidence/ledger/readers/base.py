"""The protocol of a ledger reader, strict cells, and groups of rows whose stack does not number prompts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, TypeVar

from seatrial.errors import BlockedError
from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.evidence.readers.points import MAX_STEP, decode


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What a user knows about rows that the stack does not write."""

    group_size: int | None = None
    """Completions of a prompt, where groups are inferred from their order."""
    reward_weights: Mapping[str, float] | None = None
    """Weight of each reward column; None: every column of numbers, with weight 1."""
    first_step: int | None = None
    """Rows of earlier steps are not read."""
    last_step: int | None = None
    """Rows of later steps are not read."""

    def includes(self, step: int) -> bool:
        """Whether the rows of a step are to be read."""
        early = self.first_step is not None and step < self.first_step
        return not early and (self.last_step is None or step <= self.last_step)


def files_by_step(
    files: Sequence[Path], pattern: re.Pattern[str], options: ReadOptions
) -> list[tuple[int, Path]]:
    """Return the files whose names have a requested step, in the order of steps.

    Args:
        files: of one stack.
        pattern: of their names; its first group is the step.
        options: which steps are requested.
    """
    matches = [(pattern.fullmatch(file.name), file) for file in files]
    steps = sorted((int(match[1]), file) for match, file in matches if match)
    return [(step, file) for step, file in steps if options.includes(step)]


def rows_by_step(
    files: Sequence[Path],
    pattern: re.Pattern[str],
    options: ReadOptions,
    read_row: Callable[[Mapping[str, Any], int, int], LedgerRow],
) -> list[LedgerRow]:
    """Read JSON Lines files with one step each, in the order of steps and lines.

    Args:
        files: of one stack.
        pattern: of their names; its first group is the step.
        options: which steps are requested.
        read_row: from a line's object, the step of its file and its place there to a row; a ValueError says what is
            damaged.

    Raises:
        BlockedError: a row is damaged, or names another step than its file.
    """
    rows = []
    for step, file in files_by_step(files, pattern, options):
        for index, (place, row) in enumerate(lines(file)):
            with named(place):
                if row.get("step", step) != step:
                    raise ValueError(f"it is no row of step {step}")
                rows.append(read_row(row, step, index))
    return rows


class LedgerReader(Protocol):
    """A module that reads one stack's rows."""

    NAME: str
    """Name of the stack."""

    def claims(self, file: Path, row: Mapping[str, Any] | None) -> bool:
        """Say whether a file holds this stack's rows.

        Args:
            file: its name may contain the step.
            row: the JSON object of its first line; None where it holds none.
        """
        ...

    def read(self, files: Sequence[Path], options: ReadOptions) -> list[LedgerRow]:
        """Read every row, in the order of steps and lines.

        Raises:
            BlockedError: a row is damaged (named by file and line).
            OSError: a file cannot be read.
        """
        ...


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


class Numbers:
    """Gives equal things equal numbers, in the order of their first appearance."""

    def __init__(self) -> None:
        """Start from 0."""
        self._known: dict[Hashable, int] = {}

    def __call__(self, thing: Hashable) -> int:
        """Return the number of a thing."""
        return self._known.setdefault(thing, len(self._known))


def blocks(prompts: Sequence[int], size: int | None) -> list[int]:
    """Return the number of each row's group where groups follow one another in the batch.

    Rows of one prompt that follow each other are a group, or several where their number is a multiple of the size of
    groups: two groups of one prompt may be adjacent.

    Args:
        prompts: number of each row's prompt, in the order of the batch.
        size: rows of a group; None: the size that most have.
    """
    runs = [len(list(run)) for _, run in groupby(prompts)]
    if size is None and runs:
        counted = Counter(runs)
        size = max(counted, key=lambda length: (counted[length], -length))
    groups: list[int] = []
    number = 0
    for length in runs:
        parts = length // size if size and length % size == 0 else 1
        for part in range(parts):
            groups += [number + part] * (length // parts)
        number += parts
    return groups
