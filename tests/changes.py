"""Waits for what a running command brings about: woken by each change in a folder and by the command's end."""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

_CHANGES = 0x2 | 0x8 | 0x80 | 0x100
"""Of inotify(7): modified, closed after writing, moved into the folder, created."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def wait_until(
    found: Callable[[], Found], folder: Path, process: subprocess.Popen[str], seconds: float
) -> Found:
    """Return what `found` finds, looking again after each change below a folder.

    Raises:
        AssertionError: the process ended before, or the time is over.
    """
    deadline = time.monotonic() + seconds
    ended = os.pidfd_open(process.pid)
    changes = _LIBC.inotify_init1(os.O_CLOEXEC)
    assert changes >= 0, os.strerror(ctypes.get_errno())
    try:
        while True:
            # Watched before it looks, so that a change in between wakes it. A folder is watched once.
            for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
                _LIBC.inotify_add_watch(changes, os.fsencode(place), _CHANGES)
            if result := found():
                return result
            left = deadline - time.monotonic()
            assert left > 0, f"not found within {seconds:.0f} s"
            woken, _, _ = select.select([changes, ended], [], [], left)
            assert ended not in woken, process.communicate()
            if woken:
                os.read(changes, 1 << 16)
    finally:
        os.close(changes)
        os.close(ended)
