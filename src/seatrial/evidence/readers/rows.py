"""Turns the rows of a text log (a step, perhaps a time, and metrics) into segments, and segments into a run log.

Row formats do not mark a restart: a process that resumes appends to the same file, and its steps jump back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.evidence.readers.attempts import merge
from seatrial.evidence.readers.lanes import Lane
from seatrial.evidence.readers.points import (
    MAX_STEP,
    Number,
    PointBuffer,
    Segment,
    decode,
    decode_step,
)
from seatrial.evidence.runlog import Damage, RunLog

MAX_DEPTH = 16
_MAX_DAMAGES = 8


_PLAIN = frozenset((float, int, bool))


@dataclass
class RowLog:
    """Collects the rows of one file."""

    source: str
    lane: str = "."
    """Which of several files it is, as in `Segment`."""
    separator: str = "/"
    """Joins the keys of nested mappings."""
    unread: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    num_rows: int = 0
    total_steps: int | None = None
    """The last step that the run is to reach, where the file says it."""
    _lanes: dict[str, Lane] = field(default_factory=dict)
    _num_more: int = 0
    _clocked: list[tuple[float, dict[str, Number]]] = field(default_factory=list)
    _stepless: list[tuple[int, dict[str, Number]]] = field(default_factory=list)
    _odd: dict[str, tuple[int, int, str, str]] = field(default_factory=dict)
    """Of each tag whose value was no number: line of the first, how many, the kind and text of the first."""

    def add(
        self,
        step: int | None,
        metrics: Mapping[str, Any],
        *,
        line: int,
        wall_time: float | None = None,
        lane: str = ".",
    ) -> None:
        """Add a row.

        Args:
            step: Its step. None where it has none: then its time is the clock, or its numbers belong to the whole run.
            metrics: Its values; mappings are flattened.
            line: Its line, for messages.
            wall_time: Seconds since the epoch.
            lane: Which of several writers of the file wrote it.
        """
        self.num_rows += 1
        if step is not None and abs(step) > MAX_STEP:
            self.lose(line, f"line {line}: the step is no whole number of 64 bits")
            return
        if step is not None:
            name = self.full_lane(lane)
            into = self._lanes.get(name) or self._lanes.setdefault(name, Lane())
            row = into.start(step, wall_time)
            values = tuple(metrics.values())
            if _PLAIN.issuperset(map(type, values)):
                into.add_plain(row, tuple(metrics), values)
                return
        numbers: dict[str, Number] = {}
        self._flatten(metrics, "", numbers, line, 0)
        if step is not None:
            into.add(row, numbers)
        elif wall_time is not None:
            self._clocked.append((wall_time, numbers))
        elif numbers:
            self._stepless.append((line, numbers))

    def note_total(self, total: Any) -> None:
        """Keep the last step that the run is to reach, where a value is one: `438`, or the end of `1/438`."""
        if total is None:
            return
        if isinstance(total, str):
            total = total.rpartition("/")[2]
        found = decode_step(total)
        if found is not None and found > 1:
            self.total_steps = found

    def lose(self, line: int, what: str, *, is_cut: bool = False, tag: str | None = None) -> None:
        """Note something that could not be read; what comes after the first few is counted."""
        if len(self.damage) < _MAX_DAMAGES:
            self.damage.append(Damage(path=self.source, what=what, offset=line, is_cut=is_cut, tag=tag))
            return
        self._num_more += 1
        what = f"{self._num_more} more rows or values could not be read"
        is_cut = is_cut and all(item.is_cut for item in self.damage[_MAX_DAMAGES:])
        self.damage[_MAX_DAMAGES:] = [Damage(path=self.source, what=what, offset=line, is_cut=is_cut)]

    def segments(self) -> list[Segment]:
        """Return what was collected, one segment for each start of each writer."""
        segments = [one for name, lane in self._lanes.items() for one in lane.segments(self.source, name)]
        if self._clocked:
            segments.append(self._clock_segment())
        self._place_stepless({tag for segment in segments for tag in segment.points})
        self._report_odd({tag for segment in segments for tag in segment.points} | set(self.scalars))
        return [segment for segment in segments if segment.points]

    def _place_stepless(self, stepped: set[str]) -> None:
        """A row without a step holds numbers of the whole run, unless other rows have a step for the same tags."""
        for line, numbers in self._stepless:
            shared = sorted(stepped & numbers.keys())
            if shared:
                self.lose(
                    line,
                    f"line {line} has no step that is a whole number of 64 bits, and values of {shared[0]}",
                )
            else:
                self.scalars.update({tag: number.value for tag, number in numbers.items() if not number.null})
        self._stepless = []

    def _clock_segment(self) -> Segment:
        """Return the rows without a step: their step is the seconds since the first of them."""
        first = min(wall for wall, _ in self._clocked)
        buffers: dict[str, PointBuffer] = {}
        for wall, numbers in self._clocked:
            for tag, number in numbers.items():
                buffers.setdefault(tag, PointBuffer()).add(int(wall - first), number, wall)
        points = {tag: buffer.points() for tag, buffer in buffers.items()}
        last = max(wall for wall, _ in self._clocked)
        return Segment(
            source=self.source,
            lane=self.lane,
            start=first,
            end=last,
            points=points,
            time_stepped=frozenset(points),
        )

    def full_lane(self, lane: str) -> str:
        """Return the lane of a writer of this file among those of all files."""
        if self.lane == "." or lane == ".":
            return lane if self.lane == "." else self.lane
        return f"{self.lane}/{lane}"

    def _flatten(
        self, metrics: Mapping[str, Any], prefix: str, into: dict[str, Number], line: int, depth: int
    ) -> None:
        for key, raw in metrics.items():
            tag = f"{prefix}{key}"
            if isinstance(raw, Mapping):
                self._count_odd(tag, line, "object", raw)
                if "_type" in raw or depth == MAX_DEPTH:
                    self.unread[tag] = str(raw.get("_type", "object"))
                else:
                    self._flatten(raw, tag + self.separator, into, line, depth + 1)
                continue
            number = decode(raw)
            if number is not None:
                into[tag] = number
            else:
                self._count_odd(tag, line, "list" if isinstance(raw, list | tuple) else "text", raw)

    def _count_odd(self, tag: str, line: int, kind: str, raw: Any) -> None:
        first, count, kind, text = self._odd.get(tag, (line, 0, kind, str(raw)[:40]))
        self._odd[tag] = (first, count + 1, kind, text)

    def _report_odd(self, numeric: set[str]) -> None:
        """A tag that is never a number is text, or a list; one that is a number elsewhere has lost values."""
        for tag, (line, count, kind, text) in self._odd.items():
            if tag not in numeric:
                if kind != "object":
                    self.unread[tag] = kind
            else:
                what = f"{tag}: {count} values are no numbers, the first is {text!r} in line {line}"
                self.lose(line, what, tag=tag)


def assemble(
    sources: Sequence[str],
    segments: Sequence[Segment],
    tags: Collection[str] | None,
    *,
    scalars: Mapping[str, float] | None = None,
    damage: Sequence[Damage] = (),
    unread: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    known_tags: Collection[str] = (),
    lanes_are_runs: bool = False,
) -> RunLog:
    """Return the run log of these segments.

    Args:
        sources: Files read.
        segments: What each process wrote.
        tags: Tags asked for; None keeps all.
        scalars: Numbers without a step.
        damage: What could not be read.
        unread: Tags that hold no scalars, with their kind.
        notes: Facts about the reading.
        known_tags: Tags that exist, also where no point of theirs is in the segments.
        lanes_are_runs: As in `merge`.
    """
    merged = merge(segments, lanes_are_runs=lanes_are_runs)
    alone = dict(scalars or {})
    exist = {*known_tags, *merged.series, *alone}
    asked = exist if tags is None else exist & set(tags)
    return RunLog(
        sources=sources,
        series={tag: one for tag, one in merged.series.items() if tag in asked},
        scalars={tag: value for tag, value in alone.items() if tag in asked},
        damage=damage,
        unread={tag: kind for tag, kind in (unread or {}).items() if tag not in exist},
        notes=[*notes, *merged.notes],
        truncated_tags=tags is not None,
        other_tags=[] if tags is None else sorted(exist - asked),
        runs=[] if lanes_are_runs else merged.runs,
        parts=merged.parts,
    )


def assemble_rows(
    logs: Sequence[RowLog],
    tags: Collection[str] | None,
    *,
    notes: Sequence[str] = (),
    lanes_are_runs: bool = False,
) -> RunLog:
    """Return the run log of files of rows.

    Raises:
        BlockedError: no row of any file could be read.
    """
    segments = [segment for log in logs for segment in log.segments()]
    damage = [item for log in logs for item in log.damage]
    if not any(log.num_rows for log in logs):
        why = damage[0].what if damage else "it holds no rows"
        raise BlockedError(
            f"{logs[0].source}: nothing could be read ({why}); run the job again or name another log"
        )
    read = assemble(
        [log.source for log in logs],
        segments,
        tags,
        scalars={tag: value for log in logs for tag, value in log.scalars.items()},
        damage=damage,
        unread={tag: kind for log in logs for tag, kind in log.unread.items()},
        notes=notes,
        lanes_are_runs=lanes_are_runs,
    )
    return replace(read, total_steps=max((log.total_steps or 0 for log in logs), default=0) or None)


def row_logs(root: Path, paths: Sequence[Path]) -> list[RowLog]:
    """Return an empty log for each file; among several, each is a separate writer, named by its path."""
    lanes = (
        {path: path.relative_to(root).with_suffix("").as_posix() for path in paths} if len(paths) > 1 else {}
    )
    return [RowLog(str(path), lane=lanes.get(path, ".")) for path in paths]
