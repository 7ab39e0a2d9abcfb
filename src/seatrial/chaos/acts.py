"""Which process is meant, by number or by the name that the run gave it in `parts.json`, and what is done to it.

Only that process is ever signalled. A process id that now belongs to a process started after the file was written is
refused: the part has exited, and its id was reused.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from seatrial.errors import UsageError
from seatrial.nearest import hint

PARTS = "parts.json"
"""What a run writes into its log folder: the number of the process of each part, by name."""


@dataclass(frozen=True)
class Victim:
    """A running process."""

    name: str
    """As the run calls it; the number where it has no name."""
    process: psutil.Process


def find_victim(who: str, logs: Path | None) -> Victim:
    """Return the process of a part, or of a number.

    Raises:
        UsageError: there is none, the name is unknown, or the number belongs to this process or to a newer one.
    """
    if who.isdecimal():
        return Victim(who, _process(int(who), who))
    if logs is None:
        raise UsageError(
            f"{who!r} is no process number: name the run's log folder with --log, whose {PARTS} has names"
        )
    path = logs / PARTS
    parts = read_parts(path)
    if who not in parts:
        raise UsageError(f"{path} names no part {who!r}; {hint(who, parts)}")
    process = _process(parts[who], who)
    if process.create_time() > path.stat().st_mtime:
        raise UsageError(
            f"{who} had process {parts[who]}, which has ended: the number belongs to a newer process now, which is "
            "left alone"
        )
    return Victim(who, process)


def read_parts(path: Path) -> dict[str, int]:
    """Return the processes of a run by name.

    Raises:
        UsageError: the file is missing or is not such a file.
    """
    try:
        parts = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}; the run has not started, or names no parts: give a number"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(parts, dict) or not all(type(number) is int for number in parts.values()):
        raise UsageError(f"{path} must map names of parts to process numbers")
    return parts


def _process(number: int, who: str) -> psutil.Process:
    if number in (0, 1, os.getpid(), os.getppid()):
        raise UsageError(f"{who}: process {number} is not a part of a run")
    try:
        return psutil.Process(number)
    except psutil.NoSuchProcess as error:
        raise UsageError(f"{who}: there is no process {number}") from error


CONFIRM_SECONDS = 5.0
"""A killed process must be gone, and a paused one stopped, within this time; else the act failed."""
SLICE_SECONDS = 0.05
"""Length of one cycle of running and resting of a slowed process."""


def kill(victim: Victim, seconds: float | None, over: threading.Event) -> bool:
    """Kill it at once (SIGKILL); return whether it is gone."""
    victim.process.send_signal(signal.SIGKILL)
    return _confirmed(lambda: not _runs(victim))


def pause(victim: Victim, seconds: float | None, over: threading.Event) -> bool:
    """Stop it (SIGSTOP) for some seconds or until the run is over, then continue it; return whether it stopped."""
    victim.process.send_signal(signal.SIGSTOP)
    try:
        stopped = _confirmed(lambda: not _runs(victim) or victim.process.status() == psutil.STATUS_STOPPED)
        over.wait(seconds)
    finally:
        _continue(victim)
    return stopped


def slow(victim: Victim, seconds: float | None, over: threading.Event) -> bool:
    """Let it run a tenth of the time, for some seconds or until the run is over; return whether it ran throughout."""
    deadline = None if seconds is None else time.monotonic() + seconds
    try:
        while _runs(victim) and not over.is_set() and (deadline is None or time.monotonic() < deadline):
            victim.process.send_signal(signal.SIGSTOP)
            over.wait(0.9 * SLICE_SECONDS)
            victim.process.send_signal(signal.SIGCONT)
            over.wait(0.1 * SLICE_SECONDS)
    except psutil.NoSuchProcess:
        return False
    finally:
        _continue(victim)
    return over.is_set() or _runs(victim)


ACTS: Mapping[str, Callable[[Victim, float | None, threading.Event], bool]] = {
    "kill": kill,
    "pause": pause,
    "slow": slow,
}
"""By name: (victim, seconds or None, event that is set when the run is over) -> whether it was done."""


def _continue(victim: Victim) -> None:
    try:
        victim.process.send_signal(signal.SIGCONT)
    except psutil.NoSuchProcess:
        return


def _runs(victim: Victim) -> bool:
    try:
        return bool(victim.process.is_running()) and victim.process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _confirmed(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + CONFIRM_SECONDS
    while time.monotonic() < deadline:
        try:
            if is_so():
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False
