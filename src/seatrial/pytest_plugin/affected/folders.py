"""The folder that the processes of a session share, and the removal of folders of killed sessions."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "seatrial-watch-"
_LOCK = "lock"
_held: list[int] = []
"""Descriptors of this process's locks; the kernel releases them when the process exits."""


def make_folder() -> Path:
    """Return a new folder of this process, and remove those of processes that no longer exist."""
    place = Path(tempfile.gettempdir())
    for folder in place.glob(f"{_PREFIX}*"):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = os.open(folder / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    _held.append(descriptor)
    return folder


def _is_abandoned(folder: Path) -> bool:
    """Return whether no process holds the lock of a folder of ours."""
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        descriptor = os.open(folder / _LOCK, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:  # it is being created, or belongs to another user
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
