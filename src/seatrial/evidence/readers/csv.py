"""CSV with a header and a column of steps; an empty cell is a missing value, not a NaN.

Source of the forms: PyTorch Lightning's CSVLogger (`epoch,step,train_loss`), TensorBoard's download
(`Wall time,Step,Value`, whose tag is the name of the file), W&B's export (`Step`, `run - metric`).
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path

from seatrial.evidence.readers.opening import head_of, open_text, suffix_of
from seatrial.evidence.readers.points import decode, decode_step
from seatrial.evidence.readers.rows import RowLog, assemble_rows, row_logs
from seatrial.evidence.runlog import RunLog

NAME = "CSV"
PRIORITY = 10

_STEP_NAMES = ("step", "global_step", "_step", "iteration", "iter", "update", "episode", "epoch", "round")
"""The first that is there counts: an epoch is the step only of a log that has no other."""
_LOSSES = frozenset(("loss", "train_loss", "policy_loss"))
"""Where a table has one of these and no step, its rows are counted from 1; a table of completions has none."""
_TIME_NAMES = ("wall time", "wall_time", "time", "_timestamp", "timestamp")
_DELIMITERS = ",\t;"
_DECIMAL_COMMA = re.compile(r"^\s*([-+]?\d+),(\d+(?:[eE][-+]?\d+)?)\s*$")
"""A number where the comma is the decimal point; the cells then stand between semicolons."""


def claims(file: Path, head: bytes) -> bool:
    """Say whether the first line is a header with a column of steps."""
    if suffix_of(file) not in {".csv", ".tsv", ".txt", ""}:
        return False
    header = _header(head)
    return _step_column(header) is not None or _is_counted(header)


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read CSV files as one run.

    Raises:
        BlockedError: no row could be read.
        OSError: a file cannot be read.
    """
    logs = row_logs(root, paths)
    for path, log in zip(paths, logs, strict=True):
        _read(path, log)
    return assemble_rows(logs, tags)


def _header(head: bytes) -> list[str]:
    line = head.lstrip(b"\xef\xbb\xbf").partition(b"\n")[0].decode(errors="replace").strip("\r")
    try:
        cells = next(csv.reader([line], delimiter=_delimiter(line)), [])
    except csv.Error:
        return []
    return cells if (len(cells) > 1 and line.isprintable()) or "\t" in line else []


def _delimiter(line: str) -> str:
    return max(_DELIMITERS, key=line.count)


def _step_column(header: Sequence[str]) -> int | None:
    names = [name.strip().lower() for name in header]
    return next((names.index(name) for name in _STEP_NAMES if name in names), None)


def _is_counted(header: Sequence[str]) -> bool:
    """Say whether rows without a step are those of a run, so that their place in the file is the step."""
    return bool({name.strip().lower().rpartition("/")[2] for name in header} & _LOSSES)


def _read(path: Path, log: RowLog) -> None:
    header = _header(head_of(path, 1 << 16))
    step_at = _step_column(header)
    names = [name.strip().lower() for name in header]
    time_at = next((names.index(name) for name in _TIME_NAMES if name in names), None)
    tags = [path.stem if name.strip() == "Value" and len(header) <= 3 else name.strip() for name in header]
    twice = next((tag for place, tag in enumerate(tags) if tag and tag in tags[:place]), None)
    if twice is not None:
        log.lose(1, f"several columns are called {twice!r}: one hides the other")
    if step_at is None and not _is_counted(header):
        log.lose(1, f"the header has no column of steps ({', '.join(_STEP_NAMES)})")
        return
    with io.TextIOWrapper(open_text(path), encoding="utf-8-sig", errors="replace", newline="") as stream:
        delimiter = _delimiter(stream.readline())
        rows = csv.reader(stream, delimiter=delimiter)
        try:
            for place, cells in enumerate((cells for cells in rows if cells), start=1):
                if delimiter == ";":
                    cells = [_DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in cells]
                if step_at is None:
                    _add(log, rows.line_num + 1, [*cells, str(place)], [*tags, "step"], len(tags), time_at)
                else:
                    _add(log, rows.line_num + 1, cells, tags, step_at, time_at)
        except (csv.Error, EOFError, gzip.BadGzipFile, zlib.error) as error:
            log.lose(rows.line_num + 1, f"reading stopped at line {rows.line_num + 1}: {error}")


def _add(
    log: RowLog, line: int, cells: list[str], tags: list[str], step_at: int, time_at: int | None
) -> None:
    if len(cells) != len(tags):
        log.lose(
            line, f"line {line} has {len(cells)} cells where the header has {len(tags)}: it was left out"
        )
        return
    step = decode_step(cells[step_at].strip())
    if step is None:
        log.lose(line, f"line {line}: the step {cells[step_at][:40]!r} is no whole number")
        return
    time = None if time_at is None else decode(cells[time_at])
    metrics = {
        tag: cell
        for place, (tag, cell) in enumerate(zip(tags, cells, strict=True))
        if place not in (step_at, time_at) and cell.strip()
    }
    log.add(step, metrics, line=line, wall_time=None if time is None or time.null else time.value)
