"""prime-rl's file monitor: JSON Lines of `{"step": N or null, "time": seconds, tag: number, ...}`.

A row whose step is null was sampled by the clock (inference metrics). Rows of several processes carry `producer`.
NaN and infinities are dropped by the writer, so that they show as missing steps only.
Source: PrimeIntellect-ai/prime-rl src/prime_rl/monitors/file/monitor.py, FileMonitor.log_metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from seatrial.evidence import jsonl
from seatrial.evidence.numbers import decode, decode_step
from seatrial.evidence.rows import RowLog
from seatrial.evidence.runlog import RunLog

NAME = "prime-rl's file monitor"


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
    return jsonl.read_with(root, paths, tags, _add)


def _add(log: RowLog, line: jsonl.Line) -> None:
    time = decode(line.row.get("time"))
    if time is None or time.null or "step" not in line.row:
        log.lose(line.number, f"line {line.number} has no step and time")
        return
    metrics = {tag: value for tag, value in line.row.items() if tag not in ("step", "time", "producer")}
    producer = line.row.get("producer")
    lane = producer if isinstance(producer, str) else "."
    log.add(decode_step(line.row["step"]), metrics, line=line.number, wall_time=time.value, lane=lane)
