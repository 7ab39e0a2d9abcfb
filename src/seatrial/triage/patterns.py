"""The table of failures (patterns.yaml), and whether the environment ended a command.

Source: each row names its own. What fails before or outside of the stack (disk, permission, memory of the machine) is
Blocked, and is no evidence against the stack (the seed document on end-to-end testing).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from seatrial.packaged import read_table
from seatrial.verdict import Outcome

BOUNDARIES = {
    "environment": "the machine, the installation, the scheduler, the hub or the configuration",
    "producer": "the code that makes data, rewards, or weights to send",
    "transport": "the code that carries them: collectives, rendezvous, connections",
    "consumer": "the code that receives and uses them: the inference engine, kernels",
    "loader": "the code that loads and saves weights and checkpoints",
    "metric": "a logged number that is out of bounds or not finite",
}
"""Where a failure can be."""
_TAIL_BYTES = 16384
_TAIL_LINES = 40


@dataclass(frozen=True)
class Pattern:
    """A failure that logs show."""

    id: str
    pattern: str
    boundary: str
    verdict: str
    """`Blocked` where it is no evidence against the stack, else `Fail`."""
    meaning: str
    next: str
    """What to do, or to run, next."""
    isolate: str
    """What to rerun alone; empty where that gives no information."""
    source: str
    """Where the text was read."""
    also: str = ""
    """Another expression that must stand somewhere in the log."""
    root: bool = False
    """Whether it is the cause even where another error comes before it."""
    yields: bool = False
    """Of a root: whether an exception that a program raised is the cause before it (a process that ends in an exception
    may be aborted while it is torn down)."""
    in_frames: bool = False
    """Whether a frame anywhere in the traceback identifies it, regardless of what failed below."""
    weak: bool = False
    """Whether it says what failed and not where: who was called says more."""
    in_trials: bool = False
    """Whether a trial whose command ends with it is Blocked."""

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """The pattern, compiled."""
        return re.compile(self.pattern)

    @property
    def outcome(self) -> Outcome:
        """The verdict as an outcome."""
        return Outcome(self.verdict)


@cache
def patterns() -> tuple[Pattern, ...]:
    """Return the table, in the order in which it is tried."""
    rows = read_table("seatrial.triage", "patterns.yaml")
    return tuple(Pattern(**{"also": row.pop("with", ""), **row}) for row in rows)


_NATIVE_WARNING = re.compile(r"\[W\d{4} [\d:.]+ \w+\.\w+:\d+\]")
"""Such as `[W1126 02:09:25.896250867 ProcessGroupNCCL.cpp:1575] Warning: ...`, which follows a traceback."""


class Cause(NamedTuple):
    """A cause outside the stack."""

    line: str
    """The line of the log that shows it."""
    remedy: str


def last_lines(log_path: Path, number: int = _TAIL_LINES) -> list[str]:
    """Return the last lines of a console log; empty ones and warnings of torch's native code are left out."""
    try:
        with log_path.open("rb") as file:
            file.seek(max(0, log_path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    kept = [line for line in text.splitlines() if line.strip() and not _NATIVE_WARNING.search(line)]
    return kept[-number:]


def environment_cause(log_path: Path) -> Cause | None:
    """Return the last line that points to the environment, or None."""
    rows: Sequence[Pattern] = [row for row in patterns() if row.in_trials]
    for line in reversed(last_lines(log_path)):
        for row in rows:
            if row.expression.search(line):
                return Cause(line.strip(), row.next)
    return None
