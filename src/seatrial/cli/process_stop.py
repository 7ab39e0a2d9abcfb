"""Stops a run that the user named by its process id, and its child processes."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import time
from contextlib import suppress
from pathlib import Path

import psutil

from seatrial.errors import BlockedError, UsageError

GRACE_SECONDS = 20.0
"""Between SIGTERM, on which trainers may save a checkpoint, and SIGKILL."""
_PIDFD_INFO = struct.Struct("=QQ11Ii")
"""Linux's `struct pidfd_info` (include/uapi/linux/pidfd.h): a mask, the control group, ids, and the exit status."""
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO.size << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3


class Stoppable:
    """A process that may be stopped; a later process with the same id is not mistaken for it."""

    _handle: int | None = None
    """Linux's handle of the process, which outlives it."""

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
        with suppress(AttributeError, OSError):
            self._handle = os.pidfd_open(pid)

    def __del__(self) -> None:
        """Close the handle of the process."""
        if self._handle is not None:
            os.close(self._handle)

    def rest(self, seconds: float) -> None:
        """Sleep for that long, or until the process ends."""
        if self._handle is None:
            time.sleep(seconds)
        else:
            watched = select.poll()
            watched.register(self._handle, select.POLLIN)
            watched.poll(1000 * seconds)

    def exit_status(self) -> int | None:
        """Return its exit status, minus the number of the signal that ended it; None where it is unknown.

        Linux shows the status until the parent has collected it, and from version 6.15 on also afterwards.
        """
        return None if (status := self._wait_status()) is None else os.waitstatus_to_exitcode(status)

    def _wait_status(self) -> int | None:
        with suppress(OSError, ValueError):
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            if fields[0] == "Z" and self._process.is_running():
                return int(fields[-1])
        with suppress(OSError):
            if self._handle is not None:
                asked = bytearray(_PIDFD_INFO.size)
                struct.pack_into("=Q", asked, 0, _PIDFD_INFO_EXIT)
                fcntl.ioctl(self._handle, _PIDFD_GET_INFO, asked)
                mask, *_, status = _PIDFD_INFO.unpack(asked)
                return status if mask & _PIDFD_INFO_EXIT else None
        return None

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
