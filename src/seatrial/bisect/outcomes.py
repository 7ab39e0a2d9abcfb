"""The judgement of one run."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from seatrial.bisect.causes import Cause, Obstacle


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
