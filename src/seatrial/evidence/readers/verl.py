"""verl's file logger: JSON Lines of `{"step": N, "data": {tag: number}}`.

Source: verl/utils/tracking.py, class FileLogger (`trainer.logger=["file"]`). It writes with orjson, which turns NaN
and infinities into null: a null here is a value that was not finite.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from seatrial.evidence.readers import jsonl
from seatrial.evidence.readers.points import decode_step
from seatrial.evidence.readers.rows import RowLog
from seatrial.evidence.runlog import RunLog

NAME = "verl's file logger"
PRIORITY = 40


def claims(file: Path, head: bytes) -> bool:
    """Say whether the first line has the form of verl's rows."""
    row = jsonl.first_object(file, head)
    return row is not None and "step" in row and isinstance(row.get("data"), Mapping)


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read files of verl's file logger as one run.

    Raises:
        BlockedError: no line could be read.
        OSError: a file cannot be read.
    """
    return jsonl.read_with(root, paths, tags, _add)


def _add(log: RowLog, line: jsonl.Line) -> None:
    step, data = decode_step(line.row.get("step")), line.row.get("data")
    if step is None or not isinstance(data, Mapping):
        log.lose(line.number, f"line {line.number} has no step and data")
        return
    log.add(step, data, line=line.number)
