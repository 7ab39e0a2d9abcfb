"""Reads one TensorBoard event file: scalars in bulk, everything else record by record; losses are named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seatrial.evidence.readers.points import Points, Segment
from seatrial.evidence.readers.tensorboard.event_rows import MAX_BYTES, MIN_BYTES, Decoder
from seatrial.evidence.readers.tensorboard.event_templates import scalar_or_kind
from seatrial.evidence.readers.tensorboard.tfrecord import (
    FOOTER_BYTES,
    HEADER_BYTES,
    Block,
    Loss,
    blocks,
    masked_crc,
    words_at,
)
from seatrial.evidence.runlog import Damage

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
    """Return a part with wider numbers; the rest of it was never set."""
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


_MIN_GROUP = 4
_MAX_DAMAGES = 8


class _Restart(NamedTuple):
    """A start that the writer announced, and its step."""

    place: int
    step: int
    wall_time: float


class EventFile:
    """What one event file holds."""

    def __init__(self, path: Path, decoder: Decoder, wanted: frozenset[str] | None = None) -> None:
        """Read the file.

        Args:
            path: The file.
            decoder: Keeps what is learned about records from file to file.
            wanted: Tags whose points are read; None reads all.

        Raises:
            OSError: the file cannot be read.
        """
        self.path = path
        self.num_events = 0
        self.unread: dict[str, str] = {}
        self.tags: dict[str, int] = {}
        """Every tag with scalars, wanted or not, and its number."""
        self.damage: list[Damage] = []
        self._decoder = decoder
        self._wanted = wanted
        self._scalars = ScalarTable(path.stat().st_size)
        self._restarts: list[_Restart] = []
        self._losses: list[tuple[Loss, str]] = []
        for block in blocks(path):
            self._read_block(block)
        self._describe_losses()
        if path.stat().st_size == 0:
            self.damage.append(
                Damage(path=str(path), what="the file is empty: nothing was flushed to it", offset=0)
            )

    def segments(self, lane: str) -> list[Segment]:
        """Return the points, one segment for each start that the writer announced; they can be taken once."""
        names = list(self.tags)
        segments = [Segment(source=str(self.path), lane=lane)]
        for _, step, time in self._restarts:
            segments.append(Segment(source=str(self.path), lane=lane, start=time, end=time, resume_step=step))
        cuts = [restart.place for restart in self._restarts]
        for number, section, points in self._scalars.take_all(len(names), cuts):
            if len(points):
                segments[section].points[names[number]] = points
        for segment in segments:
            walls = [points.wall_times for points in segment.points.values() if points.wall_times is not None]
            if walls:
                segment.start = float(min(wall.min() for wall in walls))
                segment.end = float(max(wall.max() for wall in walls))
        # A start without points after it says nonetheless which steps were abandoned.
        return [segment for segment in segments if segment.points or segment.resume_step is not None]

    def _read_block(self, block: Block) -> None:
        self.num_events += len(block.starts)
        single: list[int] = []
        for length, index in _by_length(block.lengths):
            if len(index) < _MIN_GROUP or not MIN_BYTES <= length <= MAX_BYTES:
                single += self._right_ones(block, index)
            else:
                single += self._read_rows(block, length, index)
        for one in sorted(single):
            self._read_record(block, one)
        self._losses += [(loss, "") for loss in block.losses]

    def _read_rows(self, block: Block, length: int, index: Indices) -> list[int]:
        """Read records of one length; return those that follow no template, as far as their checksums are right."""
        starts = block.starts[index]
        rows = _gather(block.buffer, starts, length)
        stored = words_at(block.buffer, starts + length)
        decoded = self._decoder.decode(rows, length, stored, lambda one: _is_right(block, int(index[one])))
        for found in decoded.found:
            numbers = np.array(
                [self.tags.setdefault(tag, len(self.tags)) for tag in found.tags], dtype=np.int32
            )
            if len(found.rows):
                places = starts[found.rows] + block.offset
                self._scalars.add(numbers[found.tag_ids], places, found.steps, found.wall_times, found.values)
        for one in index[decoded.wrong]:
            self._lose(block, int(one))
        return self._right_ones(block, index[decoded.rest])

    def _right_ones(self, block: Block, index: Indices) -> list[int]:
        """Return the records whose checksums are right; note the others as lost."""
        right = []
        for one in index.tolist():
            if _is_right(block, one):
                right.append(one)
            else:
                self._lose(block, one)
        return right

    def _read_record(self, block: Block, one: int) -> None:
        """Read a record by protobuf."""
        place = int(block.starts[one]) + block.offset
        event = _parse(_record(block, one))
        if event is None:
            self._lose(block, one, "is not an event, although its checksum is right")
            return
        if event.HasField("session_log") and event.session_log.status == event.session_log.START:
            self._restarts.append(_Restart(place, event.step, event.wall_time))
        rows = []
        for value in event.summary.value:
            content = scalar_or_kind(value)
            if isinstance(content, str):
                self.unread[value.tag] = content
                continue
            number = self.tags.setdefault(value.tag, len(self.tags))
            if self._wanted is None or value.tag in self._wanted:
                rows.append((number, place, event.step, event.wall_time, content))
        if rows:
            numbers, places, steps, walls, values = zip(*rows, strict=True)
            self._scalars.add(
                np.array(numbers, dtype=np.uint32),
                np.array(places),
                np.array(steps, dtype=np.int64),
                np.array(walls, dtype=np.float64),
                np.array(values, dtype=np.float64),
            )

    def _lose(self, block: Block, one: int, why: str = "has a wrong checksum") -> None:
        start, length = int(block.starts[one]) + block.offset - HEADER_BYTES, int(block.lengths[one])
        loss = Loss(start, HEADER_BYTES + length + FOOTER_BYTES, truncated=False)
        self._losses.append((loss, f"a record of {length} bytes {why}"))

    def _describe_losses(self) -> None:
        """Turn what was lost into sentences that say after which step."""
        if not self._losses:
            return
        # With a filter most steps are not decoded, so the whole file is read to locate the damage.
        whole = self if self._wanted is None else EventFile(self.path, Decoder())
        if whole is not self:
            self.damage += whole.damage
            return
        losses = sorted(self._losses)
        for loss, why in losses[:_MAX_DAMAGES]:
            what = self._sentence(loss, why)
            self.damage.append(
                Damage(path=str(self.path), what=what, offset=loss.offset, is_cut=loss.truncated)
            )
        if len(losses) > _MAX_DAMAGES:
            rest = [loss for loss, _ in losses[_MAX_DAMAGES:]]
            what = f"{len(rest)} more places are damaged: {sum(loss.size for loss in rest)} bytes in all were lost"
            self.damage.append(Damage(path=str(self.path), what=what, offset=rest[0].offset))

    def _sentence(self, loss: Loss, why: str) -> str:
        step = self._scalars.step_before(loss.offset)
        after = "before the first step" if step is None else f"after step {step}"
        if loss.truncated:
            return f"truncated {after}: {loss.size} bytes of a record"
        if why:
            return f"damaged {after}: {why} and was left out; reading continued after it"
        return f"damaged {after}: {loss.size} bytes hold no record and were left out; reading continued after them"


def _by_length(lengths: Indices) -> Iterator[tuple[int, Indices]]:
    """Yield each length with the records that have it, in order."""
    order = np.argsort(
        lengths.astype(np.uint16) if len(lengths) and lengths.max() < 2**16 else lengths, kind="stable"
    )
    ranked = lengths[order]
    bounds = np.flatnonzero(np.diff(ranked)) + 1
    for index in np.split(order, bounds):
        if len(index):
            yield int(lengths[index[0]]), index


def _gather(buffer: npt.NDArray[np.uint8], starts: Indices, length: int) -> npt.NDArray[np.uint8]:
    """Return equal-long stretches of a buffer as rows, padded to whole 8-byte words with what follows."""
    width = -(-length // 8) * 8
    if int(starts.max()) + width > len(buffer):
        buffer = np.concatenate([buffer, np.zeros(8, dtype=np.uint8)])
    window = np.ndarray((len(buffer) - width + 1,), dtype=f"V{width}", buffer=buffer, strides=(1,))
    return window[starts].view(np.uint8).reshape(len(starts), width)


def _record(block: Block, one: int) -> bytes:
    start = int(block.starts[one])
    return block.buffer[start : start + int(block.lengths[one])].tobytes()


def _is_right(block: Block, one: int) -> bool:
    end = int(block.starts[one] + block.lengths[one])
    stored = block.buffer[end : end + FOOTER_BYTES].tobytes()
    return masked_crc(_record(block, one)) == int.from_bytes(stored, "little")


def _parse(data: bytes) -> Any:
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto import event_pb2

    try:
        return event_pb2.Event.FromString(data)
    except DecodeError:
        return None
