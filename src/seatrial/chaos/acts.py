"""What is done to a process, and the look afterwards whether it was done."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping

import psutil

from seatrial.chaos.victims import Victim

CONFIRM_SECONDS = 5.0
"""A killed process is gone, and a paused one stopped, within this; else the act failed."""
SLICE_SECONDS = 0.05
"""A slowed process runs and rests in turns of this length together."""


def kill(victim: Victim, seconds: float | None, over: threading.Event) -> bool:
    """End it at once (SIGKILL); return whether it is gone."""
    victim.process.send_signal(signal.SIGKILL)
    return _confirmed(lambda: not _runs(victim))


def pause(victim: Victim, seconds: float | None, over: threading.Event) -> bool:
    """Stop it (SIGSTOP) for some seconds, or until all is over; return whether it stopped. It always goes on after."""
    victim.process.send_signal(signal.SIGSTOP)
    try:
        stopped = _confirmed(lambda: not _runs(victim) or victim.process.status() == psutil.STATUS_STOPPED)
        over.wait(seconds)
    finally:
        _go_on(victim)
    return stopped


def slow(victim: Victim, seconds: float | None, over: threading.Event) -> bool:
    """Let it run a tenth of the time, for some seconds or until all is over; return whether it was there throughout."""
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
        _go_on(victim)
    return over.is_set() or _runs(victim)


ACTS: Mapping[str, Callable[[Victim, float | None, threading.Event], bool]] = {
    "kill": kill,
    "pause": pause,
    "slow": slow,
}
"""By name: (victim, seconds or None, what is set when all is over) -> whether it was done."""


def _go_on(victim: Victim) -> None:
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
