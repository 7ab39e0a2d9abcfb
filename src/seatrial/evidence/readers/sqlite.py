"""Opens a SQLite file for reading without touching it, its write-ahead log included."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

MAGIC = b"SQLite format 3\x00"

ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What a damaged database raises; the words of an error may themselves be damaged text."""

_LOGS = ("-wal", "-journal")
_MAX_PROGRESS = 20_000
_OPERATIONS = 100_000


@contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection that cannot write, and that aborts a query which does not end.

    A killed process leaves its last rows in `<file>-wal`. Opening that in place would write next to the evidence, so
    file and log are copied first; without a log the file itself is opened as immutable.

    Raises:
        OSError: the file cannot be read.
        sqlite3.Error: the file is not a database that can be read.
    """
    logs = [
        log
        for log in (path.with_name(path.name + end) for end in _LOGS)
        if log.exists() and log.stat().st_size
    ]
    with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
        if logs:
            copy = Path(folder, path.name)
            for file in (path, *logs):
                shutil.copyfile(file, copy.with_name(file.name))
            connection = sqlite3.connect(copy)
        else:
            with path.open("rb"):
                pass  # sqlite3 says "unable to open" for any reason; this names the reason.
            connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        with closing(connection):
            connection.text_factory = _text
            calls = itertools.count()
            connection.set_progress_handler(lambda: next(calls) > _MAX_PROGRESS, _OPERATIONS)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
            yield connection


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the names of the columns of a table; empty when there is no such table."""
    real = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
    ).fetchone()
    if real is None:
        return set()
    return {str(row[0]) for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}
