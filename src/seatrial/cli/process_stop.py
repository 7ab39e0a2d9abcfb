"""Stops a run that the user named by its process id, and its child processes."""

from __future__ import annotations

import os

import psutil

from seatrial.errors import BlockedError, UsageError

GRACE_SECONDS = 20.0
"""Between SIGTERM, on which trainers may save a checkpoint, and SIGKILL."""


class Stoppable:
    """A process that may be stopped; a later process with the same id is not mistaken for it."""

    def __init__(self, pid: int) -> None:
        """Look up the process.

        Raises:
            UsageError: it is us, or what started us, or the first process of the machine.
            BlockedError: there is no such process.
        """
        ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
        if pid <= 1 or pid in ours:
            raise UsageError(
                f"--pid {pid}: that is this command, or what started it; name the process of the run"
            )
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess as error:
            raise BlockedError(f"--pid {pid}: no such process; the run may have ended already") from error

    def is_alive(self) -> bool:
        """Whether it still runs."""
        try:
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> str:
        """End it and what it started: SIGTERM to it, and SIGKILL to what is left after the grace; say what happened."""
        if not self.is_alive():
            return f"process {self._process.pid} had ended already"
        try:
            family = [self._process, *self._process.children(recursive=True)]
            self._process.terminate()
        except psutil.NoSuchProcess:
            return f"process {self._process.pid} had ended already"
        except psutil.AccessDenied as error:
            raise BlockedError(
                f"process {self._process.pid} is not ours to end: {error.msg or error}"
            ) from error
        _, left = psutil.wait_procs(family, timeout=grace_seconds)
        for process in left:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(left, timeout=grace_seconds)
        how = f"; {len(left)} processes had to be killed" if left else ""
        return f"ended process {self._process.pid}{how}"
