"""Finds and stops every process that a command started, including those outside its process group.

A variable in the command's environment, which its descendants inherit, identifies them: this also finds daemons in
sessions of their own, such as Ray's. Processes are addressed by id, never by name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import psutil

MARKER = "SEATRIAL_COMMAND"
"""Environment variable with a unique value per command."""
GRACE_SECONDS = 5.0
"""How long processes may take to exit after SIGTERM before they get SIGKILL."""
KILL_SECONDS = 10.0
"""How long the kernel may take to remove killed processes (an uninterruptible wait takes longer)."""
_POLL_SECONDS = 0.02


def living(process: subprocess.Popen[bytes], marker: str) -> list[psutil.Process]:
    """Return the living processes of the group of `process`, and all others with the marker."""
    return [other for other in psutil.process_iter() if _belongs(other, process.pid, marker)]


def _belongs(other: psutil.Process, group: int, marker: str) -> bool:
    try:
        if other.status() == psutil.STATUS_ZOMBIE:
            return False
        return os.getpgid(other.pid) == group or other.environ().get(MARKER) == marker
    except (ProcessLookupError, PermissionError, psutil.Error):
        return False


def end_all(process: subprocess.Popen[bytes], marker: str, grace_seconds: float = GRACE_SECONDS) -> int:
    """Stop a command and all that it started: SIGTERM, a grace period, SIGKILL; then reap the command.

    A second interrupt during the grace period skips to SIGKILL, and is raised again after all processes are gone.

    Returns:
        How many processes were still running.
    """
    found = living(process, marker)
    interrupted: KeyboardInterrupt | None = None
    if found:
        _send(found, signal.SIGTERM)
        try:
            _wait_until(lambda: not _reaped_and_living(process, marker), grace_seconds)
        except KeyboardInterrupt as error:
            interrupted = error
        _send(living(process, marker), signal.SIGKILL)
        _wait_until(lambda: not _reaped_and_living(process, marker), KILL_SECONDS)
    process.wait()
    if interrupted is not None:
        raise interrupted
    return len(found)


def _reaped_and_living(process: subprocess.Popen[bytes], marker: str) -> list[psutil.Process]:
    process.poll()
    return living(process, marker)


def _send(processes: list[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to each; psutil checks that an id was not reused for another process."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def _wait_until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
