"""When to act: after a logged step, some seconds, or a line of output."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs

POLL_SECONDS = 0.1
_STEP_IN_NAME = re.compile(r"step_?(\d+)\.jsonl$")


@dataclass(frozen=True)
class Moment:
    """A condition on what the run has left so far."""

    what: str
    """For messages: `step 5 is logged`."""
    has_come: Callable[[], bool]


def after_seconds(seconds: float) -> Moment:
    """Return the moment so many seconds from now."""
    started = time.monotonic()
    return Moment(f"{seconds:g} s have passed", lambda: time.monotonic() - started >= seconds)


def at_step(step: int, logs: Path) -> Moment:
    """Return the moment at which a step, or a later one, is in the log."""
    return Moment(f"step {step} is logged in {logs}", lambda: last_step(logs) >= step)


def at_line(pattern: str, console: Path) -> Moment:
    """Return the moment at which a line of a file matches."""
    expression = re.compile(pattern)

    def has_come() -> bool:
        try:
            text = console.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return False
        return any(expression.search(line) for line in text.splitlines())

    return Moment(f"a line of {console} matches {pattern!r}", has_come)


def last_step(logs: Path) -> int:
    """Return the last step of any series or file of rows below a folder; -1 where there is nothing yet."""
    steps = [int(found[1]) for path in logs.glob("*.jsonl") if (found := _STEP_IN_NAME.search(path.name))]
    if steps:
        return max(steps)
    try:
        series = read_logs(logs).series.values()
    except BlockedError:
        return -1
    return max((max(points.steps, default=-1) for points in series), default=-1)


def wait_for(moment: Moment, *, seconds: float, is_over: Callable[[], bool]) -> str | None:
    """Wait for a moment.

    Args:
        moment: waited for.
        seconds: most of them.
        is_over: whether the run has ended, so that nothing more will come.

    Returns:
        None when it has come; else why it did not.
    """
    deadline = time.monotonic() + seconds
    while not moment.has_come():
        if is_over():
            return f"the run ended before {moment.what}"
        if time.monotonic() >= deadline:
            return f"{seconds:g} s passed, and not: {moment.what}"
        time.sleep(POLL_SECONDS)
    return None
