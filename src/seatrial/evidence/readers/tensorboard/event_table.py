"""The scalars of one event file, collected in the order of decoding and handed out by tag in the order of writing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from seatrial.evidence.readers.segments import Points

PART_ROWS = 1 << 20

Indices = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


class _Column:
    """A column that grows by parts of one size, whose untouched pages cost nothing.

    Many small arrays would leave the memory in pieces when they are freed. A column begins narrow and is widened
    when values come that need it.
    """

    def __init__(self, dtype: type[np.generic]) -> None:
        self._dtype = np.dtype(dtype)
        self._parts: list[Array] = []
        self._used = PART_ROWS

    def extend(self, values: Array) -> None:
        wide = np.promote_types(self._dtype, values.dtype)
        if wide != self._dtype:
            self._dtype = wide
            full = len(self._parts) - 1
            self._parts = [
                _widened(part, PART_ROWS if place < full else self._used, wide)
                for place, part in enumerate(self._parts)
            ]
        while len(values):
            if self._used == PART_ROWS:
                self._parts.append(np.empty(PART_ROWS, dtype=self._dtype))
                self._used = 0
            now = values[: PART_ROWS - self._used]
            self._parts[-1][self._used : self._used + len(now)] = now
            self._used += len(now)
            values = values[len(now) :]

    def parts(self) -> list[Array]:
        """Return what was added."""
        return [*self._parts[:-1], *(part[: self._used] for part in self._parts[-1:])]

    def joined(self) -> Array:
        """Return what was added as one array."""
        parts = self.parts()
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def take(self) -> Array:
        """Return what was added as one array, and free the parts."""
        whole = self.joined()
        self._parts, self._used = [], PART_ROWS
        return whole


def _widened(part: Array, used: int, wide: np.dtype[Any]) -> Array:
    """Return a part with wider numbers; what lies behind those that are used was never set."""
    new = np.empty(PART_ROWS, dtype=wide)
    new[:used] = part[:used]
    return new


class ScalarTable:
    """Columns of scalars: they are the bulk of the memory of a reading, so each is kept as narrow as it can be."""

    def __init__(self, file_size: int) -> None:
        """Make a table for a file of that many bytes."""
        self._place_type = np.uint32 if file_size < 2**32 else np.uint64
        self._tag_ids = _Column(np.uint16)
        self._places = _Column(self._place_type)
        self._steps = _Column(np.int32)
        self._wall_times = _Column(np.float64)
        self._values = _Column(np.float32)

    def add(self, tag_ids: Array, places: Array, steps: Array, wall_times: Array, values: Array) -> None:
        """Append scalars; `places` is where in the file their records are."""
        self._tag_ids.extend(tag_ids.astype(np.min_scalar_type(tag_ids.max())))
        self._places.extend(places.astype(self._place_type))
        low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
        narrow = steps.min() >= low and steps.max() <= high
        self._steps.extend(steps.astype(np.int32) if narrow else steps)
        self._wall_times.extend(wall_times)
        self._values.extend(values)

    def step_before(self, offset: int) -> int | None:
        """Return the step of the last scalar that was written before a place in the file."""
        best, step = -1, None
        for places, steps in zip(self._places.parts(), self._steps.parts(), strict=True):
            before = np.flatnonzero(places < offset)
            if len(before):
                index = before[places[before].argmax()]
                if int(places[index]) > best:
                    best, step = int(places[index]), int(steps[index])
        return step

    def take_all(self, num_tags: int, cuts: list[int]) -> Iterator[tuple[int, int, Points]]:
        """Yield tag number, section and points, and leave the table empty.

        Args:
            num_tags: Tags are numbered below this.
            cuts: Places in the file, ascending, that divide it into sections 0, 1, ...
        """
        if not self._tag_ids.parts():
            return
        tag_ids, places = self._tag_ids.take(), self._places.joined()
        bounds = np.cumsum(np.bincount(tag_ids, minlength=num_tags)).tolist()
        order = np.argsort(tag_ids, kind="stable")
        places = places[order]
        spans = list(zip([0, *bounds], bounds, strict=False))
        if not all(_ascends(places[low:high]) for low, high in spans):
            places = self._places.joined()
            order = np.lexsort((places, tag_ids))
            places = places[order]
        sections = np.searchsorted(np.array(cuts), places, side="right") if cuts else None
        del tag_ids, places
        self._places.take()
        steps = self._steps.take()[order].astype(np.int64, copy=False)
        values = self._values.take()[order].astype(np.float64, copy=False)
        walls = self._wall_times.take()[order]
        del order
        for number, (low, high) in enumerate(spans):
            points = Points(steps=steps[low:high], values=values[low:high], wall_times=walls[low:high])
            if sections is None:
                yield number, 0, points
                continue
            for section in range(len(cuts) + 1):
                yield number, section, points.take(sections[low:high] == section)


def _ascends(places: Array) -> bool:
    return bool((places[1:] >= places[:-1]).all())
