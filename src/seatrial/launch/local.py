"""Starts a command in its own process group, records its output, and stops everything that it leaves behind.

A variable in the command's environment, which its descendants inherit, identifies them: this also finds daemons in
sessions of their own, such as Ray's. Processes are addressed by id, never by name. The log is redacted line by line,
flushed, and limited in size: a run that prints without end must not fill the disk, and its last lines matter most, so
the beginning and the end of the output are kept, and the bytes between them are counted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from seatrial.errors import BlockedError

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


MAX_LOG_BYTES = 64 * 2**20
"""Bytes kept from the start of the output."""
TAIL_LINES = 200
"""Lines kept from the end of the output, once the start is full."""
MAX_LINE_BYTES = 64 * 2**10
"""Longer lines are split, so that output without newlines cannot grow in memory."""


class ConsoleLog:
    """Writes the output of one command to a file; use as a context manager.

    `error` is the first OSError of a write (disk full): the output is still read, so that the command never blocks on
    its pipe, and the caller decides what to do.
    """

    def __init__(self, path: Path, redact: Callable[[str], str], max_bytes: int = MAX_LOG_BYTES) -> None:
        """Open the file for writing.

        Raises:
            OSError: the file cannot be opened.
        """
        self._redact = redact
        self._max_bytes = max_bytes
        self._file = path.open("wb")
        self._pending = b""
        self._written = 0
        self._left_out = 0
        self._closed = False
        self._lock = threading.Lock()
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self.last_line = ""
        self.error: OSError | None = None

    def feed(self, chunk: bytes) -> None:
        """Add output, from any thread; output after `close` is dropped."""
        with self._lock:
            if self._closed:
                return
            *lines, self._pending = (self._pending + chunk).split(b"\n")
            for line in lines:
                self._line(line + b"\n")
            while len(self._pending) > MAX_LINE_BYTES:
                self._line(self._pending[:MAX_LINE_BYTES] + b"\n")
                self._pending = self._pending[MAX_LINE_BYTES:]

    def _line(self, line: bytes) -> None:
        text = self._redact(line.decode("utf-8", errors="replace"))
        self.last_line = text.strip() or self.last_line
        data = text.encode("utf-8")
        if self._written + len(data) > self._max_bytes:
            if len(self._tail) == TAIL_LINES:
                self._left_out += len(self._tail[0])
            self._tail.append(data)
            return
        self._written += len(data)
        self._write(data)

    def _write(self, data: bytes) -> None:
        if self.error is not None:
            return
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            self.error = error

    def close(self) -> None:
        """Write the pending line and the tail, and close the file."""
        with self._lock:
            self._closed = True
            if self._pending:
                self._line(self._pending + b"\n")
            if self._left_out:
                self._write(f"[... {self._left_out} bytes of output left out here ...]\n".encode())
            for line in self._tail:
                self._write(line)
            try:
                self._file.close()
            except OSError as error:
                self.error = self.error or error

    def __enter__(self) -> ConsoleLog:
        """Return the log."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()


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
    # `Popen.wait` with a time limit polls, with pauses that make it late.
    ended = threading.Thread(target=process.wait, daemon=True)
    ended.start()
    while ended.is_alive():
        now = time.monotonic()
        if now >= deadline:
            return False
        if progress is not None:
            progress(now - started, console.last_line)
        ended.join(min(_PROGRESS_SECONDS, deadline - now))
    return True
