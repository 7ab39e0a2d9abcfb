"""The record of one run, as the journal and the report contain it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from seatrial.bisect.causes import Cause
from seatrial.bisect.history import Commit
from seatrial.bisect.outcomes import RunOutcome
from seatrial.errors import UsageError

if TYPE_CHECKING:
    from seatrial.bisect.prober import Probed


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


def run_of(number: int, commit: Commit, probed: Probed) -> Run:
    """Return the record of a finished run."""
    judgement = probed.judgement
    return Run(
        number=number,
        commit=commit.sha,
        outcome=judgement.outcome,
        reason=judgement.reason,
        tree=commit.tree,
        value=judgement.value,
        fingerprint=judgement.fingerprint,
        cause=judgement.cause,
        seconds=round(probed.seconds, 3),
        attempts=probed.attempts,
        evidence=str(probed.run_dir),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )
