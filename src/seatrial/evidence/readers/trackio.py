"""trackio's SQLite file: one row per logged step, the metrics as JSON text.

NaN and infinities are stored as the text `NaN`, `Infinity`, `-Infinity`. Tags of several runs in one file
are prefixed with the name of the run.
Source: gradio-app/trackio trackio/sqlite_storage.py, table `metrics(run_name, timestamp, step, metrics)`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence.readers import jsonl, sqlite
from seatrial.evidence.readers.rows import RowLog, assemble_rows
from seatrial.evidence.runlog import RunLog

NAME = "trackio"
PRIORITY = 80

_COLUMNS = {"run_name", "timestamp", "step", "metrics"}


def claims(file: Path, head: bytes) -> bool:
    """Say whether a file is a SQLite file with trackio's table."""
    if not head.startswith(sqlite.MAGIC):
        return False
    try:
        with sqlite.open_read_only(file) as connection:
            return sqlite.columns(connection, "metrics") >= _COLUMNS
    except sqlite.ERRORS:
        return False


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read trackio files.

    Raises:
        BlockedError: a file has no row that can be read.
        OSError: a file cannot be read.
    """
    logs = [_read(path) for path in paths]
    return assemble_rows(logs, tags, lanes_are_runs=True)


def _read(path: Path) -> RowLog:
    log = RowLog(str(path))
    try:
        with sqlite.open_read_only(path) as connection:
            # By the row's own number: the order of writing, which a corrupt index cannot change.
            rows = connection.execute(
                "SELECT rowid, run_name, timestamp, step, metrics FROM metrics ORDER BY rowid"
            )
            for number, run, timestamp, step, text in rows:
                metrics = jsonl.parse(text) if isinstance(text, str | bytes) else None
                if not isinstance(metrics, Mapping) or not isinstance(step, int):
                    log.lose(number, f"row {number} of the table metrics holds no step and JSON object")
                    continue
                log.add(step, metrics, line=number, wall_time=_seconds(timestamp), lane=str(run))
    except sqlite.ERRORS as error:
        last = log.num_rows
        log.lose(last, f"the database is damaged after row {last}: {error}")
        if not last:
            raise BlockedError(
                f"{path}: {log.damage[0].what}; copy it again from where it was written"
            ) from error
    return log


def _seconds(timestamp: object) -> float | None:
    if not isinstance(timestamp, str):
        return None
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError):
        return None
