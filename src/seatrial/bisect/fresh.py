"""Checks that the logs of a run were written by that run. A log from an earlier run is no evidence for a later one.

Three checks: the modification time of each file against the start of the run (by the clock of its file system), the
event times in the log against the same start, and the inode and first bytes against files that earlier runs left
outside their own folders, which detects a log that was only appended to.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seatrial.errors import BlockedError
from seatrial.evidence.runlog import RunLog
from seatrial.files import write_whole

_NAME = "log_files.json"
_SAME_CLOCK_SECONDS = 0.05
"""File systems stamp with the kernel's tick."""
_OTHER_CLOCK_SECONDS = 5.0
"""How far the clocks of a cluster's machines may differ."""
_EPOCH_SECONDS = 1e9
"""Smaller event times count from the start of a run."""
_REMEDY = "let the command write to {logs}, or to a folder of the checkout that is not a link"


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """When and where a run started."""

    run_dir: Path
    device: int
    """Device of the run's directory."""
    of_file_system: float
    """Seconds since the epoch, by the clock of the file system."""
    of_machine: float
    """The same, by the clock of this machine."""

    @classmethod
    def now(cls, run_dir: Path) -> Beginning:
        """Record the start time, before the command starts."""
        stamp = run_dir / "begun"
        stamp.touch()
        found = stamp.stat()
        return cls(
            run_dir=run_dir, device=found.st_dev, of_file_system=found.st_mtime, of_machine=time.time()
        )


def require_fresh(logs: Path, log: RunLog, beginning: Beginning) -> None:
    """Check that this run wrote every file below `logs` and every event read from it.

    Raises:
        BlockedError: a file or event is older, or a file continues one from an earlier run.
    """
    outside = []
    for path in _files(logs):
        found = path.stat()
        same_clock = found.st_dev == beginning.device
        begun = beginning.of_file_system if same_clock else beginning.of_machine
        age = begun - found.st_mtime
        if age > (_SAME_CLOCK_SECONDS if same_clock else _OTHER_CLOCK_SECONDS):
            raise BlockedError(f"{path} was last written {age:.1f} s before this run began; {_REMEDY}")
        if not path.resolve().is_relative_to(logs.resolve()) or logs.resolve() != logs.absolute():
            outside.append(path)
    for tag, series in log.series.items():
        times = series.wall_times
        if times is None or not len(times) or not np.isfinite(times).all() or times.min() < _EPOCH_SECONDS:
            continue
        age = beginning.of_machine - float(times.min())
        if age > _OTHER_CLOCK_SECONDS:
            raise BlockedError(
                f"{tag!r} in {logs} has events from {age:.1f} s before this run began; {_REMEDY}"
            )
    _require_not_appended(outside, beginning.run_dir)


def _files(logs: Path) -> Iterator[Path]:
    """Yield the files below a path; follow links, visit each folder once."""
    if logs.is_file():
        yield logs
    seen: set[tuple[int, int]] = set()
    for folder, names, files in os.walk(logs, followlinks=True):
        found = Path(folder).stat()
        if (found.st_dev, found.st_ino) in seen:
            names.clear()
            continue
        seen.add((found.st_dev, found.st_ino))
        yield from (path for path in (Path(folder, name) for name in sorted(files)) if path.is_file())


def _require_not_appended(outside: list[Path], run_dir: Path) -> None:
    """Compare files behind links with those of earlier runs, and record them for later runs.

    Raises:
        BlockedError: a file starts with everything that an earlier run wrote into it.
    """
    if not outside:
        return
    for record in run_dir.parent.glob(f"*/{_NAME}"):
        for device, inode, size, digest in json.loads(record.read_text(encoding="utf-8")):
            for path in outside:
                found = path.stat()
                grown = (found.st_dev, found.st_ino) == (device, inode) and found.st_size > size > 0
                if grown and _digest(path, size) == digest:
                    raise BlockedError(f"{path} begins with what run {record.parent.name} logged; {_REMEDY}")
    marks = [(found.st_dev, found.st_ino, found.st_size, _digest(path, found.st_size))
             for path in outside for found in [path.stat()]]  # fmt: skip
    write_whole(run_dir / _NAME, json.dumps(marks))


def _digest(path: Path, size: int) -> str:
    """Return a digest of the first `size` bytes of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while size > 0 and (block := stream.read(min(size, 2**20))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()
