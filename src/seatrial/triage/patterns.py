"""Why a command failed: what in its last words points to the environment and not of the stack.

Source: the triage rules of the seed document on end-to-end testing: what fails before or beside the stack
(disk, permission, memory of the machine) is Blocked, and is no evidence against the stack.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_TAIL_BYTES = 16384
_TAIL_LINES = 40


class Cause(NamedTuple):
    """A cause outside the stack."""

    line: str
    """The line of the log that shows it."""
    remedy: str


_PATTERNS = (
    (
        r"No space left on device|Disk quota exceeded|\[Errno 27\]|File too large",
        "free space, or give another --output",
    ),
    (r"Permission denied|Read-only file system|Operation not permitted", "make the folder writable"),
    (
        r"Cannot allocate memory|DefaultCPUAllocator: can't allocate|\bMemoryError\b",
        "free memory, or lower the batch",
    ),
    (r"Too many open files", "raise the limit of open files (ulimit -n)"),
    (
        r"no NVIDIA driver|CUDA driver version is insufficient|finds no CUDA device",
        "run where there is a GPU",
    ),
)


def last_lines(log_path: Path, number: int = _TAIL_LINES) -> list[str]:
    """Return the last lines of a console log, empty ones left out."""
    try:
        with log_path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-number:]


def environment_cause(log_path: Path) -> Cause | None:
    """Return the last line that points to the environment, or None."""
    for line in reversed(last_lines(log_path)):
        for pattern, remedy in _PATTERNS:
            if re.search(pattern, line):
                return Cause(line.strip(), remedy)
    return None
