"""MLflow's stores: the file store (`<run>/metrics/<tag>`, lines of `time value step`) and the SQLite store.

Tags of several runs are prefixed with the run id. Deleted runs are left out.
Source: mlflow/store/tracking/file_store.py (`_get_metric_from_line`, times in milliseconds) and
mlflow/store/tracking/dbmodels/models.py (`SqlMetric`, where NaN is `is_nan` and infinities are the largest floats).
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from seatrial.errors import BlockedError
from seatrial.evidence.readers import sqlite
from seatrial.evidence.readers.lanes import restarts
from seatrial.evidence.readers.points import Number, PointBuffer, Segment, decode, decode_step
from seatrial.evidence.readers.rows import assemble
from seatrial.evidence.runlog import Damage, RunLog

NAME = "MLflow"
PRIORITY = 70

_LINE = re.compile(rb"\d{1,16} \S{1,400}( -?\d{1,19})?\s")
_SQL_COLUMNS = {"key", "value", "timestamp", "run_uuid", "step", "is_nan"}


class _Point(NamedTuple):
    time: float
    step: int
    value: float


def claims(file: Path, head: bytes) -> bool:
    """Say whether a file is a metric of a run in a file store, or a SQLite store."""
    if head.startswith(sqlite.MAGIC):
        return _is_store(file)
    run = _run_folder(file)
    return (
        run is not None
        and (run / "meta.yaml").is_file()
        and (not head or _LINE.match(head + b"\n") is not None)
    )


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read the runs of MLflow stores.

    Raises:
        BlockedError: nothing could be read.
        OSError: a file cannot be read.
    """
    points: dict[str, dict[str, list[_Point]]] = {}
    damage: list[Damage] = []
    for path in paths:
        run = _run_folder(path)
        if run is None:
            _read_store(path, points, damage)
        elif not _is_deleted(run):
            tag = path.relative_to(run / "metrics").as_posix()
            points.setdefault(run.name, {})[tag] = _read_metric(path, tag, damage)
    if not any(held for run_points in points.values() for held in run_points.values()):
        why = damage[0].what if damage else "no run that is not deleted has a metric"
        raise BlockedError(f"{paths[0]}: nothing could be read ({why}); name another run")
    segments = [part for run, held in points.items() for part in _segments(str(paths[0].parent), run, held)]
    return assemble([str(path) for path in paths], segments, tags, damage=damage, lanes_are_runs=True)


def _segments(source: str, run: str, held: dict[str, list[_Point]]) -> list[Segment]:
    """Return the points of a run, one segment for each start.

    A resumed run appends to the files of the same run. A start is where the steps of the tag with most points jump
    back. Other tags may have steps of their own (system metrics count samples) and are cut at the same times.
    """
    lead = max(held.values(), key=len)
    cuts = [lead[place].time for place in restarts([point.step for point in lead])]
    segments = []
    for low, high in itertools.pairwise([-math.inf, *cuts, math.inf]):
        segment = Segment(source=f"{source} ({run})", lane=run)
        for tag, points in held.items():
            buffer = PointBuffer()
            for point in points:
                if low <= point.time < high:
                    buffer.add(point.step, Number(point.value), point.time)
            if len(buffer):
                segment.points[tag] = buffer.points()
        times = [point.time for points in held.values() for point in points if low <= point.time < high]
        segment.start, segment.end = min(times, default=None), max(times, default=None)
        segments.append(segment)
    return segments


def _run_folder(file: Path) -> Path | None:
    """Return the folder of the run that a metric file belongs to: tags with slashes are in sub-folders."""
    for parent in file.parents:
        if parent.name == "metrics":
            return parent.parent
    return None


def _is_deleted(run: Path) -> bool:
    """Say whether a run of a file store was deleted: its files stay until they are collected."""
    return (
        re.search(rb"(?m)^lifecycle_stage:\s*['\"]?deleted\b", (run / "meta.yaml").read_bytes()) is not None
    )


def _read_metric(path: Path, tag: str, damage: list[Damage]) -> list[_Point]:
    points: list[_Point] = []
    text = path.read_bytes()
    lost: list[int] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        words = line.decode(errors="replace").split()
        time = decode(words[0]) if words else None
        value = decode(words[1]) if len(words) > 1 else None
        step = decode_step(words[2]) if len(words) > 2 else 0
        if time is None or value is None or step is None or not math.isfinite(time.value):
            lost.append(number)
        else:
            points.append(_Point(time.value / 1000, step, value.value))
    if lost:
        what = f"{tag}: {len(lost)} of {len(lines)} lines are no time, value and step, the first is line {lost[0]}"
        damage.append(Damage(path=str(path), what=what, offset=lost[0]))
    if text and not text.endswith(b"\n"):
        what = f"{tag}: truncated in line {len(lines)}, whose last digits may be lost"
        damage.append(Damage(path=str(path), what=what, offset=len(lines), is_cut=True))
    return points


def _is_store(file: Path) -> bool:
    try:
        with sqlite.open_read_only(file) as connection:
            return sqlite.columns(connection, "metrics") >= _SQL_COLUMNS
    except sqlite.ERRORS:
        return False


def _read_store(path: Path, runs: dict[str, dict[str, list[_Point]]], damage: list[Damage]) -> None:
    query = (
        "SELECT metrics.run_uuid, key, value, is_nan, timestamp, step FROM metrics "
        "JOIN runs ON runs.run_uuid = metrics.run_uuid WHERE lifecycle_stage = 'active' "
        "ORDER BY timestamp, step, metrics.rowid"
    )
    number = odd = 0
    try:
        with sqlite.open_read_only(path) as connection:
            for run, key, value, is_nan, time, step in connection.execute(query):
                number += 1
                if isinstance(value, float | int) and isinstance(step, int) and isinstance(time, int):
                    point = _Point(time / 1000, step, _stored(float(value), bool(is_nan)))
                    runs.setdefault(str(run), {}).setdefault(str(key), []).append(point)
                else:
                    odd += 1
    except sqlite.ERRORS as error:
        what = f"the database is damaged after {number} metrics: {error}"
        damage.append(Damage(path=str(path), what=what, offset=number))
    if odd:
        damage.append(Damage(path=str(path), what=f"{odd} of {number} metrics have no value, time and step"))


def _stored(value: float, is_nan: bool) -> float:
    if is_nan:
        return math.nan
    if abs(value) >= sys.float_info.max:
        return math.copysign(math.inf, value)
    return value
