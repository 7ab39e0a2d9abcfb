"""One JSON object that holds the history of a run, as a custom training loop writes it.

| entry | what it is |
|---|---|
| `tag: [values]` | a column; one with the name of a step gives the steps, else points are numbered from 1 |
| `name: [{"step": 1, tag: value}, ...]` | rows with a step each |
| `tag: {"10": value, "20": value}` | a series by step |
| `name: {...}` | an object of these, whose tags are `name/tag` |

Settings and figures of the whole run next to them are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.evidence.readers import jsonl
from seatrial.evidence.readers.opening import read_text, suffix_of
from seatrial.evidence.readers.points import PointBuffer, Points, Segment, decode, decode_step, join_points
from seatrial.evidence.readers.rows import RowLog, assemble
from seatrial.evidence.runlog import Damage, RunLog

NAME = "JSON object of columns"
PRIORITY = 15

_LISTS = re.compile(rb'"\s*:\s*\[\s*[-\d"NIn{\]]|"\s*:\s*\{')
_STEP_NAMES = (*jsonl.STEP_KEYS, "steps", "global_steps", "iterations")
_LEAST_POINTS = 10
"""Shorter columns of equal length may be settings, where they are not most of the object."""
_MAX_DEPTH = 3


@dataclass
class _Content:
    """What an object holds."""

    columns: dict[str, list[Any]] = field(default_factory=dict)
    series: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    steps: list[int] | None = None
    others: dict[str, str] = field(default_factory=dict)
    """Kind of each entry that is none of them."""


def claims(file: Path, head: bytes) -> bool:
    """Say whether a file is an object that holds the history of a run."""
    if suffix_of(file) != ".json" or not head.lstrip().startswith(b"{") or not _LISTS.search(head):
        return False
    document = _load(file)
    held = _content(document)
    if held.rows:
        return True
    columns = [column for column in held.columns.values() if _is_column(column)]
    lengths = Counter(len(column) for column in columns if len(column) >= _LEAST_POINTS)
    return 2 * (len(columns) + (held.steps is not None)) > len(document) or any(
        count > 1 for count in lengths.values()
    )


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read one object.

    Raises:
        BlockedError: there are several files, or the file is none.
        OSError: the file cannot be read.
    """
    if len(paths) > 1:
        names = ", ".join(str(path) for path in paths[:5])
        raise BlockedError(f"{root}: holds {len(paths)} objects of columns ({names}); name one of them")
    path = paths[0]
    held = _content(_load(path))
    segment, damage, notes = Segment(source=str(path)), list[Damage](), list[str]()
    for tag, column in held.columns.items():
        if column and not any(decode(raw) for raw in column):
            held.others[tag] = "list"
        elif held.steps is not None and len(column) != len(held.steps):
            what = f"{tag} has {len(column)} values where there are {len(held.steps)} steps: it was left out"
            damage.append(Damage(path=str(path), what=what))
        else:
            steps = held.steps or range(1, len(column) + 1)
            segment.points[tag] = _points(tag, zip(steps, column, strict=True), path, damage)
    for tag, series in held.series.items():
        pairs = ((step, raw) for key, raw in series.items() if (step := decode_step(key)) is not None)
        segment.points[tag] = _points(tag, pairs, path, damage)
    shared = Counter(key for rows in held.rows.values() for key in {key for row in rows for key in row})
    for name, rows in held.rows.items():
        twice = {key for key, count in shared.items() if count > 1 and key not in (name, *_STEP_NAMES)}
        log = RowLog(str(path))
        for number, row in enumerate(rows, start=1):
            own = {f"{name}/{key}" if key in twice else key: value for key, value in row.items()}
            jsonl.add_row(log, jsonl.Line(number, own))
        for part in log.segments():
            for tag, points in part.points.items():
                before = segment.points.get(tag)
                segment.points[tag] = points if before is None else join_points([before, points])
        damage += log.damage
        held.others.update(log.unread)
    if not segment.points:
        raise BlockedError(f"{path}: holds no column of numbers; name another log")
    if held.columns and held.steps is None:
        notes.append(f"{path.name}: no column has the name of a step; points are numbered from 1")
    return assemble([str(path)], [segment], tags, damage=damage, unread=held.others, notes=notes)


def _content(document: Mapping[str, Any], prefix: str = "", depth: int = 0) -> _Content:
    """Sort the entries of an object, and of the objects in it."""
    found = _Content()
    for key, value in document.items():
        tag = f"{prefix}{key}"
        if isinstance(value, Mapping) and _is_series(value):
            found.series[tag] = value
        elif isinstance(value, Mapping) and depth < _MAX_DEPTH:
            inner = _content(value, f"{tag}/", depth + 1)
            found.columns |= inner.columns
            found.series |= inner.series
            found.rows |= inner.rows
            found.steps = found.steps or inner.steps
            found.others[tag] = "object"
        elif isinstance(value, list) and _is_rows(value):
            found.rows[tag] = value
        elif isinstance(value, list) and key in _STEP_NAMES and (steps := _whole(value)):
            found.steps = steps
        elif isinstance(value, list) and not (value and isinstance(value[0], Mapping)):
            found.columns[tag] = value
        else:
            found.others[tag] = type(value).__name__
    return found


def _points(tag: str, pairs: Iterable[tuple[int, Any]], path: Path, damage: list[Damage]) -> Points:
    buffer = PointBuffer()
    odd = 0
    for step, raw in pairs:
        number = decode(raw)
        if number is None:
            odd += 1
        else:
            buffer.add(step, number)
    if odd:
        damage.append(Damage(path=str(path), what=f"{tag}: {odd} values are no numbers", tag=tag))
    return buffer.points()


def _whole(column: Sequence[Any]) -> list[int] | None:
    """Return a column as steps, or None where one of them is no whole number."""
    steps = [step for raw in column if (step := decode_step(raw)) is not None]
    return steps if steps and len(steps) == len(column) else None


def _is_column(held: Any) -> bool:
    return isinstance(held, list) and len(held) > 1 and decode(held[0]) is not None


def _is_rows(held: Sequence[Any]) -> bool:
    return len(held) > 1 and all(isinstance(row, Mapping) and jsonl.step_key(row) for row in held)


def _is_series(held: Mapping[str, Any]) -> bool:
    return len(held) > 1 and all(decode_step(key) is not None and decode(one) for key, one in held.items())


def _load(path: Path) -> Mapping[str, Any]:
    try:
        held = jsonl.parse(read_text(path))
    except BlockedError:
        return {}
    return held if isinstance(held, Mapping) else {}
