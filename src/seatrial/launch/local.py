"""Starts a command in its own process group, records its output, and stops everything that it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.launch.console import MAX_LOG_BYTES, ConsoleLog
from seatrial.launch.descendants import GRACE_SECONDS, MARKER, end_all

_POLL_SECONDS = 0.02
_PROGRESS_SECONDS = 0.5

Progress = Callable[[float, str], None]
"""Called while waiting, with the seconds waited and the last line of output."""

SIGNALS_FROM_OUTSIDE = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGXCPU}
)
"""Signals sent from outside (out of memory, a scheduler, a user); all others are the process's own crash."""


@dataclass(frozen=True, kw_only=True)
class Launched:
    """How a command ended."""

    argv: tuple[str, ...]
    returncode: int
    """Exit status; negative: the signal that killed it."""
    seconds: float
    timed_out: bool
    """True if the time limit stopped it."""
    log_path: Path
    num_stragglers: int
    """Processes that it had started, outlived it, and were killed."""

    @property
    def ok(self) -> bool:
        """Whether the command exited by itself with status 0."""
        return self.returncode == 0 and not self.timed_out

    @property
    def signal_number(self) -> int | None:
        """The signal that killed it; status 128 + n means signal n, as shells and signal handlers report it."""
        if self.returncode < 0:
            return -self.returncode
        return self.returncode - 128 if self.returncode - 128 in SIGNALS_FROM_OUTSIDE else None

    @property
    def killed_from_outside(self) -> bool:
        """Whether a signal from outside killed it (and not our time limit)."""
        return not self.timed_out and self.signal_number in SIGNALS_FROM_OUTSIDE

    def describe(self) -> str:
        """Return in a few words how it ended: `exit status 1`, `killed by signal 9 (SIGKILL)`."""
        if self.timed_out:
            return f"stopped by the time limit after {self.seconds:.0f} s"
        if self.signal_number is None:
            return f"exit status {self.returncode}"
        names = {int(number): number.name for number in signal.Signals}
        words = f"killed by signal {self.signal_number} ({names.get(self.signal_number, 'unknown')})"
        return words if self.returncode < 0 else f"{words}, exit status {self.returncode}"


def run_command(
    argv: Sequence[str],
    *,
    log_path: Path,
    environment: Mapping[str, str],
    timeout_seconds: float,
    directory: Path | None = None,
    progress: Progress | None = None,
    redact: Callable[[str], str] = str,
    max_log_bytes: int = MAX_LOG_BYTES,
    grace_seconds: float = GRACE_SECONDS,
) -> Launched:
    """Run one command until it exits; its output goes to `log_path`.

    Args:
        argv: program and arguments; no shell interprets them.
        log_path: file for standard output and error, redacted line by line; overwritten.
        environment: the whole environment of the command (`PYTHONUNBUFFERED=1` is added).
        timeout_seconds: time limit; then the process group is stopped and `timed_out` is set.
        directory: working directory; None is ours.
        progress: called about twice a second while waiting.
        redact: applied to each line before it is written anywhere.
        max_log_bytes: size of the kept start of the output; after it, only the last lines are kept.
        grace_seconds: between SIGTERM and SIGKILL when the process group is stopped.

    Raises:
        BlockedError: the command cannot be started, or its log cannot be written (disk full, no permission).
        KeyboardInterrupt: interrupted; the process group has been stopped.
    """
    started = time.monotonic()
    try:
        console = ConsoleLog(log_path, redact, max_log_bytes)
    except OSError as error:
        raise BlockedError(f"cannot write the run's log {log_path}: {error.strerror}") from error
    with console:
        marker = uuid.uuid4().hex
        process = _start(argv, {**environment, MARKER: marker}, directory)
        reader = threading.Thread(target=_drain, args=(process, console), daemon=True)
        try:
            reader.start()
            timed_out = not _wait(process, started + timeout_seconds, started, console, progress)
        finally:
            num_stragglers = end_all(process, marker, grace_seconds)
            if reader.is_alive():
                reader.join(timeout=grace_seconds)
    if console.error is not None:
        raise BlockedError(
            f"cannot write the run's log {log_path}: {console.error.strerror}; free space or give another --output"
        )
    return Launched(
        argv=tuple(argv),
        returncode=process.returncode,
        seconds=time.monotonic() - started,
        timed_out=timed_out,
        log_path=log_path,
        num_stragglers=0 if timed_out else num_stragglers,
    )


def _start(
    argv: Sequence[str], environment: Mapping[str, str], directory: Path | None
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment, "PYTHONUNBUFFERED": "1"},
            cwd=directory,
            start_new_session=True,
        )
    except OSError as error:
        raise BlockedError(
            f"cannot start {argv[0]!r}: {error.strerror}; is it installed and executable?"
        ) from error


def _drain(process: subprocess.Popen[bytes], console: ConsoleLog) -> None:
    """Copy output until every writer has closed it."""
    assert process.stdout is not None
    with process.stdout as stream:
        while chunk := os.read(stream.fileno(), 65536):
            console.feed(chunk)


def _wait(
    process: subprocess.Popen[bytes],
    deadline: float,
    started: float,
    console: ConsoleLog,
    progress: Progress | None,
) -> bool:
    """Wait for the exit; return False if the deadline came first."""
    next_report = started
    while True:
        now = time.monotonic()
        if progress is not None and now >= next_report:
            progress(now - started, console.last_line)
            next_report = now + _PROGRESS_SECONDS
        try:
            process.wait(timeout=_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                return False
            continue
        return True
