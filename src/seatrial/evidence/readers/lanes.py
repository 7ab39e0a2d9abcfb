"""Collects the rows of one writer as columns, and cuts them where the writer started again."""

from __future__ import annotations

import itertools
import math
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from seatrial.evidence.readers.points import Floats, Number, Points, Segment, decode

_PACK_ROWS = 512


@dataclass
class _Column:
    """Values of one tag in blocks, each with the numbers of its rows; a null is NaN and marked."""

    rows: list[npt.NDArray[np.int64]] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)
    nulls: set[int] = field(default_factory=set)
    """Rows whose value is an explicit null."""


class _Pack:
    """Rows of numbers under the same tags that wait to become arrays."""

    def __init__(self, num_tags: int) -> None:
        self.rows = array("q")
        self.values = bytearray()
        self._pack = struct.Struct(f"{num_tags}d").pack

    def add(self, row: int, values: Sequence[float]) -> None:
        self.rows.append(row)
        try:
            self.values += self._pack(*values)
        except struct.error:
            # An integer that no float holds.
            self.values += self._pack(*(number.value for raw in values if (number := decode(raw))))


@dataclass
class Lane:
    """The rows of one writer: steps and times by row, values by tag."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    walls: array[float] = field(default_factory=lambda: array("d"))
    """NaN where a row has no time."""
    columns: dict[str, _Column] = field(default_factory=dict)
    _packs: dict[tuple[str, ...], _Pack] = field(default_factory=dict)
    """Rows that wait to become arrays, by their tags."""

    def start(self, step: int, wall_time: float | None) -> int:
        """Begin a row and return its number."""
        self.steps.append(step)
        self.walls.append(math.nan if wall_time is None else wall_time)
        return len(self.steps) - 1

    def add_plain(self, row: int, tags: tuple[str, ...], values: Sequence[float]) -> None:
        """Add the values of a row that are all numbers."""
        pack = self._packs.get(tags)
        if pack is None:
            pack = self._packs[tags] = _Pack(len(tags))
        pack.add(row, values)
        if len(pack.rows) >= _PACK_ROWS:
            self._unpack(tags)

    def add(self, row: int, numbers: Mapping[str, Number]) -> None:
        """Add the values of a row."""
        for tag, number in numbers.items():
            column = self.columns.setdefault(tag, _Column())
            if number.null:
                column.nulls.add(row)
        self.add_plain(row, tuple(numbers), [number.value for number in numbers.values()])

    def _unpack(self, tags: tuple[str, ...]) -> None:
        pack = self._packs.pop(tags)
        rows = np.array(pack.rows)
        block = np.frombuffer(pack.values, dtype=np.float64).reshape(len(rows), len(tags)).T.copy()
        for tag, values in zip(tags, block, strict=True):
            column = self.columns.setdefault(tag, _Column())
            column.rows.append(rows)
            column.values.append(values)

    def segments(self, source: str, lane: str) -> list[Segment]:
        """Return a segment for each start of the writer."""
        for tags in list(self._packs):
            self._unpack(tags)
        steps, walls = np.array(self.steps, dtype=np.int64), np.array(self.walls)
        bounds = [0, *restarts(steps.tolist()), len(steps)]
        found = [
            Segment(source=source, lane=lane, start=_earliest(walls[low:high]), end=_latest(walls[low:high]))
            for low, high in itertools.pairwise(bounds)
        ]
        for tag in list(self.columns):
            column = self.columns.pop(tag)
            rows, values = np.concatenate(column.rows), np.concatenate(column.values)
            order = np.argsort(rows, kind="stable") if (rows[1:] < rows[:-1]).any() else slice(None)
            rows, values = rows[order], values[order]
            nulls = np.isin(rows, list(column.nulls)) if column.nulls else None
            cuts = np.searchsorted(rows, bounds)
            for segment, (low, high) in zip(found, itertools.pairwise(cuts), strict=True):
                if high > low:
                    times = walls[rows[low:high]]
                    segment.points[tag] = Points(
                        steps=steps[rows[low:high]],
                        values=values[low:high],
                        wall_times=None if np.isnan(times).any() else times,
                        nulls=nulls[low:high] if nulls is not None and nulls[low:high].any() else None,
                    )
        return found


def _earliest(walls: Floats) -> float | None:
    known = walls[~np.isnan(walls)]
    return float(known.min()) if len(known) else None


def _latest(walls: Floats) -> float | None:
    known = walls[~np.isnan(walls)]
    return float(known.max()) if len(known) else None


def restarts(steps: list[int]) -> list[int]:
    """Return where a sequence of steps restarts.

    Steps that jump back and continue below the highest one so far were written by a resumed process. A single late row
    (an evaluation that took long) is no restart: the next row is ahead again.
    """
    found = []
    highest: int | None = None
    for index, step in enumerate(steps):
        if highest is not None and step < highest:
            following = steps[index + 1] if index + 1 < len(steps) else None
            if step <= steps[index - 1] and (following is None or step <= following <= highest):
                found.append(index)
                highest = step
        highest = step if highest is None else max(highest, step)
    return found
