"""prime-rl's file monitor: JSON Lines of `{"step": N or null, "time": seconds, tag: number, ...}`.

A row whose step is null was sampled by the clock (inference metrics). Rows of several processes carry `producer`.
NaN and infinities are dropped by the writer, so that they show as missing steps only.
Source: PrimeIntellect-ai/prime-rl, FileMonitor.log_metrics: src/prime_rl/monitors/file.py at commit 559b447, and its
later form src/prime_rl/monitors/file/monitor.py, which adds `producer` and rows without a step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seatrial.evidence.readers import jsonl
from seatrial.evidence.readers.coverage import dropped_steps
from seatrial.evidence.readers.points import decode, decode_step
from seatrial.evidence.readers.rows import RowLog
from seatrial.evidence.runlog import RunLog, Series

NAME = "prime-rl's file monitor"
PRIORITY = 45


def claims(file: Path, head: bytes) -> bool:
    """Say whether the first line has the form of prime-rl's rows."""
    row = jsonl.first_object(file, head)
    return row is not None and list(row)[:2] == ["step", "time"] and isinstance(row["time"], int | float)


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read files of prime-rl's file monitor as one run.

    Raises:
        BlockedError: no line could be read.
        OSError: a file cannot be read.
    """
    writers: dict[str, set[str]] = {}

    def add(log: RowLog, line: jsonl.Line) -> None:
        _add(log, line, writers)

    # The steps of all tags say how far a writer came: those that are not asked for are left out afterwards.
    log = jsonl.read_with(root, paths, None, add)
    log = replace(log, dropped=_dropped(log.series, writers))
    return log if tags is None else log.only(tags)


def _add(log: RowLog, line: jsonl.Line, writers: dict[str, set[str]]) -> None:
    time = decode(line.row.get("time"))
    if time is None or time.null or "step" not in line.row:
        log.lose(line.number, f"line {line.number} has no step and time")
        return
    metrics = {tag: value for tag, value in line.row.items() if tag not in ("step", "time", "producer")}
    producer = line.row.get("producer")
    lane = producer if isinstance(producer, str) else "."
    step = decode_step(line.row["step"])
    if step is not None:
        writers.setdefault(log.full_lane(lane), set()).update(metrics)
    log.add(step, metrics, line=line.number, wall_time=time.value, lane=lane)


def _dropped(
    series: Mapping[str, Series], writers: Mapping[str, set[str]]
) -> dict[str, npt.NDArray[np.int64]]:
    """Return the steps that each writer probably dropped, by tag; a tag of several writers begins with its writer."""
    dropped: dict[str, npt.NDArray[np.int64]] = {}
    for writer, tags in writers.items():
        names = {name for tag in tags for name in (tag, f"{writer}/{tag}") if name in series}
        dropped.update(dropped_steps({name: series[name] for name in names}))
    return dropped
