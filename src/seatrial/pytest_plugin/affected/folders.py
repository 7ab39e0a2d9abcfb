"""The folder in which the processes of a session meet, and what killed sessions left of theirs."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "seatrial-watch-"
_LOCK = "lock"
_held: list[int] = []
"""Descriptors of the locks of this process: the kernel lets go of them when it ends, however it ends."""


def make_folder() -> Path:
    """Return a folder of this process, and take away those of processes that are gone."""
    place = Path(tempfile.gettempdir())
    for folder in place.glob(f"{_PREFIX}*"):
        if _is_left(folder):
            shutil.rmtree(folder, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = os.open(folder / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    _held.append(descriptor)
    return folder


def _is_left(folder: Path) -> bool:
    """Return whether nobody holds the lock of a folder of ours."""
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        descriptor = os.open(folder / _LOCK, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:  # it is being made, or is another's
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
