"""A job is judged by its own evidence: a wrapper script writes the exit status into the run's directory.

The report of a scheduler or container engine only shows that waiting is over; it is never the result. A job without an
exit status did not finish, even if its state is called COMPLETED.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.files import write_whole
from seatrial.launch.local import GRACE_SECONDS

_WRAPPER = """\
#!/bin/sh
# Runs a command and records its process id and exit status as evidence. Slurm starts a requeued job again from here.
rm -f "$SEATRIAL_RUN_DIR/exit_status"
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then echo "$SLURM_RESTART_COUNT" > "$SEATRIAL_RUN_DIR/requeued"; fi
echo "$$" > "$SEATRIAL_RUN_DIR/pid"
cd "$SEATRIAL_RUN_TREE" || exit 125
"$@"
status=$?
echo "$status" > "$SEATRIAL_RUN_DIR/exit_status.new"
mv "$SEATRIAL_RUN_DIR/exit_status.new" "$SEATRIAL_RUN_DIR/exit_status"
exit "$status"
"""

Heartbeat = Callable[[str], None]
"""Called about twice a second while waiting, with the state of the job (`squeue: PENDING`); an exception from it stops
the job."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One command that runs once."""

    name: str
    argv: tuple[str, ...]
    tree: Path
    """Working directory."""
    run_dir: Path
    """Directory of this run only; the launcher must be able to access it at the same path."""
    environment: Mapping[str, str]
    """The whole environment."""
    own_variables: tuple[str, ...]
    """Variables that the run needs in addition to the environment of its machine."""
    timeout_seconds: float
    script: Path | None = None
    """The test script as it will run; a scheduler reads the job's size from it."""
    grace_seconds: float = GRACE_SECONDS
    """How long the job may take to stop what it started, once it is asked to."""

    @property
    def console(self) -> Path:
        """Path of the output."""
        return self.run_dir / "run.log"

    def wrapped(self) -> tuple[str, ...]:
        """Write the wrapper script and return the command line that runs the job through it."""
        path = self.run_dir / "run.sh"
        path.write_text(_WRAPPER, encoding="utf-8")
        return ("/bin/sh", str(path), *self.argv)

    def exit_status(self) -> int | None:
        """Return the status that the wrapper recorded, or None."""
        try:
            return int((self.run_dir / "exit_status").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def set_aside_status(self, number: int) -> None:
        """Rename the status of one job of a chain, so that it is not read as the status of the next."""
        path = self.run_dir / "exit_status"
        if path.exists():
            path.replace(self.run_dir / f"exit_status.{number}")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended."""

    exit_status: int | None
    """From the run's own evidence; None if there is none."""
    seconds: float
    timed_out: bool = False
    last_report: str = ""
    """The launcher's report of the end, for messages."""
    cause: str = ""
    """Why the scheduler ended the job, in words; empty where it does not say."""


def times_requeued(run_dir: Path) -> int:
    """Return how often the scheduler started a job again from its beginning."""
    try:
        return int((run_dir / "requeued").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0


def write_started(run_dir: Path, **identity: Any) -> None:
    """Record what was started, so that a later process can stop it if this one is killed."""
    write_whole(run_dir / "started.json", json.dumps(identity))


def read_started(run_dir: Path) -> dict[str, Any]:
    """Return what `write_started` recorded, or an empty dictionary."""
    try:
        data = json.loads((run_dir / "started.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def run_client(
    argv: Sequence[str], environment: Mapping[str, str] | None = None, timeout_seconds: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a scheduler's command and return its result.

    Raises:
        BlockedError: the command is not installed, or does not respond.
    """
    try:
        return subprocess.run(
            list(argv),
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        raise BlockedError(f"cannot run {argv[0]!r}: {error.strerror}; is it installed here?") from error
    except subprocess.TimeoutExpired as error:
        raise BlockedError(f"{argv[0]} did not respond within {timeout_seconds:.0f} s") from error


@dataclass(frozen=True)
class Polled:
    """A scheduler's report on a job."""

    over: bool
    last_report: str
    timed_out: bool = False
    cause: str = ""
    """Why the scheduler ended the job, in words; empty where it does not say."""


def wait_for(
    job: Job,
    poll: Callable[[], Polled],
    heartbeat: Heartbeat,
    *,
    poll_seconds: float,
    grace_polls: int = 5,
    limit_seconds: float = float("inf"),
) -> Ended:
    """Wait until the job has left its exit status, or is over without one.

    After the scheduler's report of the end, `grace_polls` further polls allow for a slow shared file system.
    """
    started = time.monotonic()
    polls_after_end = 0
    polled = Polled(over=False, last_report="submitted")
    while True:
        seconds = time.monotonic() - started
        if (status := job.exit_status()) is not None:
            return Ended(exit_status=status, seconds=seconds, last_report=polled.last_report)
        if seconds > limit_seconds:
            return Ended(
                exit_status=None,
                seconds=seconds,
                timed_out=True,
                last_report=f"time limit; {polled.last_report}",
            )
        polled = poll()
        polls_after_end = polls_after_end + 1 if polled.over else 0
        if polls_after_end > grace_polls:
            return Ended(
                exit_status=job.exit_status(),
                seconds=seconds,
                timed_out=polled.timed_out,
                last_report=polled.last_report,
                cause=polled.cause,
            )
        next_poll = time.monotonic() + poll_seconds
        while (left := next_poll - time.monotonic()) > 0:
            heartbeat(polled.last_report)
            time.sleep(min(left, 0.5))
        heartbeat(polled.last_report)
