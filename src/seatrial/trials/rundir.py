"""The run directory: `runs/<utc time>-<target>/`, one per run, never shared, valid at every moment.

Files that matter are written under a temporary name and moved into place.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from seatrial.errors import BlockedError, UsageError
from seatrial.files import not_written, write_text
from seatrial.trials.results import Results

RESULTS = "results.json"
IDENTITY = "identity.json"
_LOCK = ".lock"


def make_directory(path: Path, *, exist_ok: bool = False) -> None:
    """Make a folder and its parents.

    Raises:
        BlockedError: it cannot be made.
        FileExistsError: it exists (unless `exist_ok`).
    """
    try:
        path.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError:
        if exist_ok:
            raise BlockedError(f"cannot make {path}: a file of that name is in the way") from None
        raise
    except OSError as error:
        raise not_written("make", path, error) from error


class RunDirectory:
    """One run's folder, held by one process at a time; use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Take the folder, which exists.

        Raises:
            UsageError: another process is at work in it.
            BlockedError: it cannot be written.
        """
        self.path = path
        try:
            self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise not_written("write", path / _LOCK, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UsageError(f"{path} is in use by another seatrial run; wait for it to end") from None

    @classmethod
    def create(
        cls, base: Path, target: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> RunDirectory:
        """Make a new folder under `base`; two runs that start in the same second get two.

        Raises:
            BlockedError: it cannot be made.
        """
        stem = f"{now():%Y%m%dT%H%M%SZ}-{target}"
        for number in range(1, 1000):
            path = base / (stem if number == 1 else f"{stem}-{number}")
            try:
                make_directory(path)
            except FileExistsError:
                continue
            return cls(path)
        raise BlockedError(f"{base} holds a thousand runs named {stem}; give another --output")

    @classmethod
    def reopen(cls, path: Path) -> tuple[RunDirectory, Results]:
        """Take the folder of an earlier run to continue it.

        Raises:
            UsageError: it is no run directory, or another process is at work in it.
            BlockedError: its results.json cannot be read.
        """
        if not (path / RESULTS).is_file():
            raise UsageError(f"{path} is no run directory: it holds no {RESULTS}")
        directory = cls(path)
        try:
            return directory, read_results(path)
        except BlockedError:
            directory.close()
            raise

    def write_results(self, results: Results) -> None:
        """Replace `results.json` atomically."""
        write_text(self.path / RESULTS, results.to_text())

    def write_identity(self, identity: Mapping[str, Any]) -> None:
        """Replace `identity.json` atomically."""
        write_text(self.path / IDENTITY, json.dumps(identity, indent=2, sort_keys=True) + "\n")

    def begin_trial(self, level: int, name: str) -> Path:
        """Make a new folder for a trial; that of an abandoned attempt is renamed, so that nothing old is read."""
        path = self.path / "trials" / f"{level}-{name}"
        if path.exists():
            number = 1
            while (aside := path.with_name(f"{path.name}.abandoned-{number}")).exists():
                number += 1
            path.rename(aside)
        make_directory(path)
        return path

    def close(self) -> None:
        """Give the folder free."""
        os.close(self._lock)

    def __enter__(self) -> RunDirectory:
        """Return the directory itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the folder free."""
        self.close()


def read_results(path: Path) -> Results:
    """Read the results of a run directory.

    Raises:
        UsageError: it is no run directory.
        BlockedError: `results.json` is damaged or of another schema version.
    """
    file = path / RESULTS
    if not file.is_file():
        raise UsageError(f"{path} is no run directory: it holds no {RESULTS}")
    try:
        return Results.from_text(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BlockedError(f"cannot read {file}: {error}") from error
