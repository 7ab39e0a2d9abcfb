"""The journal: one line per event, synced to disk before anything else happens.

A line is JSON, or a line in the format of `git bisect log` that a user added: `git bisect skip HASH`. A line cut short
by a kill is dropped when the journal is opened next; damage anywhere else is an error.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from seatrial.bisect.gitlog import Mark, read_mark
from seatrial.errors import BlockedError, UsageError

NAME = "journal.jsonl"


@dataclass(frozen=True)
class Entry:
    """One line: a record of ours, or a mark that a user added."""

    record: Mapping[str, Any] | None
    mark: Mark | None = None


class Journal:
    """Append-only; use as a context manager. Only one process may hold it."""

    def __init__(self, path: Path) -> None:
        """Open or create the journal, and drop a last line that was cut short.

        Raises:
            BlockedError: it cannot be opened, or another process uses it.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise BlockedError(f"another process is working on {path}; wait for it, or stop it") from error
        except OSError as error:
            raise BlockedError(f"cannot open the journal {path}: {error.strerror}") from error
        self._drop_torn_line()

    def _drop_torn_line(self) -> None:
        text = self.path.read_bytes()
        if text and not text.endswith(b"\n"):
            last = text[text.rfind(b"\n") + 1 :]
            if _is_whole(last):
                os.lseek(self._file, 0, os.SEEK_END)
                os.write(self._file, b"\n")
            else:
                os.ftruncate(self._file, len(text) - len(last))
        os.lseek(self._file, 0, os.SEEK_END)

    def write(self, kind: str, **values: Any) -> None:
        """Append one record and sync it to disk.

        Raises:
            BlockedError: it cannot be written.
        """
        line = json.dumps({"kind": kind, **values}, ensure_ascii=False, allow_nan=False) + "\n"
        data = line.encode("utf-8")
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError as error:
            raise BlockedError(
                f"cannot write the journal {self.path}: {error.strerror}; free space, then continue with --resume"
            ) from error

    def close(self) -> None:
        """Close the file and release the lock."""
        os.close(self._file)

    def __enter__(self) -> Journal:
        """Return the journal."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()


def _is_whole(line: bytes) -> bool:
    """Return whether a line without a newline is complete: valid JSON, or a git bisect line."""
    text = line.decode("utf-8", errors="replace").strip()
    if not text.startswith("{"):
        return text.startswith("git bisect ")
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def read_journal(path: Path) -> list[Entry]:
    """Read every entry.

    Raises:
        UsageError: there is no journal, or a line is neither JSON nor of `git bisect log`.
    """
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read the journal {path}: {error}") from error
    lines = text.split("\n")
    if not text.endswith("\n") and not _is_whole(lines[-1].encode()):
        lines.pop()
    entries = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("git bisect "):
            entries.append(Entry(None, read_mark(line, path, number)))
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UsageError(
                f"{path}, line {number}: neither JSON nor a line of git bisect log ({error}); fix or delete it"
            ) from error
        if not isinstance(record, dict) or "kind" not in record:
            raise UsageError(f"{path}, line {number}: not a record of a bisect journal; fix or delete it")
        entries.append(Entry(record))
    return entries
