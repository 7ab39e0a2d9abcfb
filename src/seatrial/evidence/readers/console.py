"""Console logs: what a run printed, with its rows of metrics among everything else.

Steps are those of the row. Rows of Hugging Face trainers name no step: they are counted, from 1, and rows of an
evaluation or a summary stand at the row before them. See `console_rows` for the forms.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence.readers.assemble import assemble_rows, row_logs
from seatrial.evidence.readers.console_rows import ConsoleRow, parse_row
from seatrial.evidence.readers.jsonl import raw_lines
from seatrial.evidence.readers.opening import suffix_of
from seatrial.evidence.readers.rows import RowLog
from seatrial.evidence.runlog import RunLog

NAME = "console"
PRIORITY = 5

_SUFFIXES = {"", ".log", ".out", ".txt", ".err", ".stdout", ".stderr", ".console"}
_OF_A_QUEUE = re.compile(r"\.[eo]\d+")
MAX_BYTES_BEFORE_A_ROW = 64 << 20
_BREAKS = re.compile(rb"[\r\n]")


def claims(file: Path, head: bytes) -> bool:
    """Say whether a file is text in which a line is a row of metrics."""
    suffix = suffix_of(file)
    if b"\0" in head or not (suffix in _SUFFIXES or _OF_A_QUEUE.fullmatch(suffix)):
        return False
    seen = 0
    try:
        for text in raw_lines(file, RowLog(str(file))):
            if any(parse_row(part.decode(errors="replace")) for part in _BREAKS.split(text)):
                return True
            seen += len(text)
            if seen > MAX_BYTES_BEFORE_A_ROW:
                return False
    except BlockedError:
        return False
    return False


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read console logs.

    Raises:
        BlockedError: no line is a row of metrics.
        OSError: a file cannot be read.
    """
    logs = row_logs(root, paths)
    notes = [note for path, log in zip(paths, logs, strict=True) for note in _read(path, log)]
    return assemble_rows(logs, tags, notes=notes)


def _read(path: Path, log: RowLog) -> list[str]:
    """Read one file; return notes."""
    number = place = num_counted = 0
    for text in raw_lines(path, log):
        number += 1
        for part in _BREAKS.split(text):
            row = parse_row(part.decode(errors="replace"))
            if row is None:
                continue
            if row.open_ended and not text.endswith(b"\n"):
                log.lose(
                    number, f"truncated in line {number}, whose row of metrics may not be whole", is_cut=True
                )
                row = replace(row, broken="")
                row.metrics.pop(row.last or "", None)
            if row.step is None and not row.is_summary:
                num_counted += 1
                place += 1
            _add(log, row, number, place)
    counted = f"{path.name}: its rows name no step; {num_counted} rows are counted from 1"
    return [counted] if num_counted else []


def _add(log: RowLog, row: ConsoleRow, number: int, place: int) -> None:
    if row.broken:
        log.lose(number, f"line {number}: part of a row of metrics is no tag and number: {row.broken[:60]!r}")
    log.add(max(place, 1) if row.step is None else row.step, row.metrics, line=number)
