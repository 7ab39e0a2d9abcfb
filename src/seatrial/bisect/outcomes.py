"""The outcome of one run, the environment faults that prevent a verdict, and the record of a run.

A Blocked run is no evidence about its commit: it counts neither as good nor as bad.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.errors import UsageError

_TAIL_BYTES = 64 * 2**10


class Cause(enum.StrEnum):
    """What prevented a verdict."""

    MACHINE = "machine"
    """Disk full, device missing or broken, memory taken."""
    NETWORK = "network"
    """A host could not be reached."""
    QUOTA = "quota"
    """A service or a file system refused more use."""
    SCHEDULER = "scheduler"
    """The job was not started, was preempted, or its end is unknown."""
    SIGNAL = "signal"
    """The command was killed by a signal."""
    EVIDENCE = "evidence"
    """The run finished, but its evidence cannot be read."""
    SETUP = "setup"
    """A program is missing, or a setting refuses what the run needs: the same at every commit and every retry."""


RETRIES = {
    Cause.MACHINE: 1,
    Cause.NETWORK: 3,
    Cause.QUOTA: 3,
    Cause.SCHEDULER: 3,
    Cause.SIGNAL: 1,
    Cause.EVIDENCE: 1,
    Cause.SETUP: 0,
}
"""Retries of one run, by cause."""


class Obstacle(NamedTuple):
    """An environment fault that prevented a verdict."""

    cause: Cause
    reason: str


_SIGNS: tuple[tuple[Cause, re.Pattern[str]], ...] = tuple(
    (cause, re.compile(pattern, re.IGNORECASE))
    for cause, pattern in (
        (Cause.SETUP, r"^seatrial: no Ray cluster: |transport '[\w-]+' not allowed"),
        (Cause.MACHINE, r"no space left on device"),
        (Cause.QUOTA, r"disk quota exceeded|quota exceeded"),
        (Cause.QUOTA, r"\b429\b.{0,40}too many requests|too many requests.{0,40}\b429\b"),
        (
            Cause.NETWORK,
            r"could not resolve (?:host|proxy)|temporary failure in name resolution|name or service not known",
        ),
        (Cause.NETWORK, r"network is unreachable|no route to host"),
        (
            Cause.NETWORK,
            r"(?:connection (?:refused|reset|timed out)|operation timed out)(?!.*(?:localhost|127\.0\.0\.1))",
        ),
        (Cause.NETWORK, r"\b50[234]\b (?:bad gateway|service unavailable|gateway time-?out)"),
        (
            Cause.MACHINE,
            r"no cuda-capable device|all cuda-capable devices are busy|cuda driver version is insufficient",
        ),
        (Cause.MACHINE, r"uncorrectable ecc error|gpu has fallen off the bus|nvml: (?:driver|unknown error)"),
    )
)


def obstacle_in(log_path: Path) -> Obstacle | None:
    """Return the first sign of an environment fault near the end of a run's console output, or None."""
    try:
        with log_path.open("rb") as stream:
            stream.seek(max(0, log_path.stat().st_size - _TAIL_BYTES))
            tail = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return None
    for line in tail.splitlines():
        if (found := obstacle_of(line)) is not None:
            return found
    return None


def obstacle_of(text: str) -> Obstacle | None:
    """Return the environment fault that a message reports, or None."""
    for cause, sign in _SIGNS:
        if sign.search(text):
            return Obstacle(cause, text.strip()[:200])
    return None


class RunOutcome(enum.StrEnum):
    """What one run shows about its commit."""

    PASS = "Pass"
    FAIL = "Fail"
    SKIP = "Skip"
    """The commit cannot be judged, and a retry will not help."""
    BLOCKED = "Blocked"
    """The environment prevented a verdict; a retry may help."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What one run shows about its commit, and why."""

    outcome: RunOutcome
    reason: str
    value: float | None = None
    fingerprint: str | None = None
    cause: Cause | None = None
    """Set with Blocked."""

    @classmethod
    def fail(cls, reason: str) -> Judgement:
        """Return a Fail."""
        return cls(outcome=RunOutcome.FAIL, reason=reason)

    @classmethod
    def skip(cls, reason: str) -> Judgement:
        """Return a Skip."""
        return cls(outcome=RunOutcome.SKIP, reason=reason)

    @classmethod
    def blocked(cls, obstacle: Obstacle) -> Judgement:
        """Return a Blocked."""
        return cls(outcome=RunOutcome.BLOCKED, reason=obstacle.reason, cause=obstacle.cause)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run and its result."""

    number: int
    commit: str
    outcome: RunOutcome
    reason: str
    tree: str = ""
    value: float | None = None
    fingerprint: str | None = None
    cause: Cause | None = None
    seconds: float = 0.0
    attempts: int = 1
    evidence: str = ""
    """Directory of the run; empty for a mark that a user made."""
    time: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the run as JSON values."""
        data = asdict(self)
        return {**data, "outcome": self.outcome.value, "cause": self.cause.value if self.cause else None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        """Read a `result` record, possibly edited by hand.

        Raises:
            UsageError: the record is not valid.
        """
        values = {name: value for name, value in data.items() if name != "kind"}
        try:
            outcome = RunOutcome(values["outcome"])
            cause = Cause(values["cause"]) if values.get("cause") else None
            return cls(**{**values, "outcome": outcome, "cause": cause})
        except (KeyError, ValueError, TypeError) as error:
            raise UsageError(
                f"the journal's result of run {data.get('number', '?')} cannot be read: {error}"
            ) from error
