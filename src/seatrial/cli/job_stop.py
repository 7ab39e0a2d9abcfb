"""Stops a Slurm job that the user named by its number: `scancel`, and `squeue` until it is gone.

Source: the manual pages of squeue and scancel.
"""

from __future__ import annotations

import re
import time

from seatrial.errors import BlockedError, UsageError
from seatrial.launch.jobs import run_client

ASK_SECONDS = 15.0
"""Seconds between two queries to the scheduler."""
GONE_SECONDS = 120.0
"""After scancel: Slurm gives a job KillWait, 30 s by default, between SIGTERM and SIGKILL."""


class StoppableJob:
    """A Slurm job that this command may stop."""

    def __init__(self, job: str) -> None:
        """Look for the job.

        Raises:
            UsageError: the text is not the number of a job.
            BlockedError: Slurm's commands are not installed, or there is no such job.
        """
        if not re.fullmatch(r"\d+(?:_\d+)?", job):
            raise UsageError(f"--job {job}: the number of a Slurm job, such as 4711, or 4711_2 of an array")
        self._job = job
        self._asked, self._was_alive = time.monotonic(), True
        if not self._is_listed():
            raise BlockedError(f"--job {job}: squeue knows no such job; the run may have ended already")

    def is_alive(self) -> bool:
        """Whether the job is listed; queried every `ASK_SECONDS`, and assumed while the scheduler does not answer."""
        if self._was_alive and time.monotonic() - self._asked >= ASK_SECONDS:
            self._asked, self._was_alive = time.monotonic(), self._may_be_listed()
        return self._was_alive

    def stop(self) -> str:
        """Stop the job and return what happened.

        Raises:
            BlockedError: scancel refuses.
        """
        done = run_client(["scancel", self._job])
        if done.returncode != 0:
            raise BlockedError(
                f"job {self._job} could not be stopped: {done.stderr.strip()[:200] or 'scancel failed'}"
            )
        ends = time.monotonic() + GONE_SECONDS
        while time.monotonic() < ends:
            if not self._may_be_listed():
                return f"stopped job {self._job}"
            time.sleep(0.5)
        return f"asked Slurm to stop job {self._job}; it is still listed after {GONE_SECONDS:.0f} s"

    def _may_be_listed(self) -> bool:
        """Query squeue; the job counts as listed if squeue does not answer in time."""
        try:
            return self._is_listed()
        except BlockedError:
            return True

    def _is_listed(self) -> bool:
        """Query squeue; the job counts as listed on any error other than an unknown job id."""
        asked = run_client(["squeue", "--noheader", f"--jobs={self._job}", "--format=%T"])
        if asked.returncode != 0:
            return "invalid job id" not in asked.stderr.lower()
        return bool(asked.stdout.strip())
