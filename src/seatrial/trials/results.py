"""The one source of every view: what was requested of a run, and each verdict with its evidence.

`results.json` holds a `Results`. It is written when the run starts, with every requested trial in it, and again
before each command and after each trial: also after a crash, the file says what was known then.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, ValidationError

from seatrial.verdict import Outcome, Verdict, combine

SCHEMA_VERSION = 1


def _to_verdict(value: Any) -> Verdict:
    return value if isinstance(value, Verdict) else Verdict.from_json(value)


VerdictField = Annotated[
    Verdict, PlainValidator(_to_verdict), PlainSerializer(Verdict.to_json, return_type=dict)
]


class TrialState(enum.StrEnum):
    """How far a trial came."""

    PENDING = "pending"
    """Requested, and not begun."""
    RUNNING = "running"
    """Begun; in a file at rest: the harness itself was killed."""
    INTERRUPTED = "interrupted"
    """Stopped by a user or a scheduler before it concluded."""
    CONCLUDED = "concluded"
    """Every sensor of it has given its verdict."""
    NOT_REQUESTED = "not requested"
    """Known and not requested."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class TrialResult(_Record):
    """One deliverable of one coverage level."""

    name: str
    level: int
    summary: str
    """What the trial does, in a few words."""
    proves: str
    does_not_prove: str
    key_verdicts: list[str] = Field(default_factory=list)
    """Names of the verdicts that what it proves rests on."""
    state: TrialState = TrialState.PENDING
    verdicts: list[VerdictField] = Field(default_factory=list)
    commands: list[str] = Field(default_factory=list)
    """What was launched, as a command line without secrets."""
    directory: str | None = None
    """Folder of its evidence, relative to the run directory."""
    model: str | None = None
    seconds: float | None = None
    limitations: list[str] = Field(default_factory=list)
    """What this run of the trial did not cover."""

    @property
    def requested(self) -> bool:
        """Whether somebody asked for it."""
        return self.state is not TrialState.NOT_REQUESTED

    @property
    def outcome(self) -> Outcome:
        """The outcome of the trial; one that did not conclude is Blocked unless something failed already."""
        if not self.requested:
            return Outcome.NOT_REQUESTED
        if self.state is TrialState.CONCLUDED:
            return combine(self.verdicts)
        return combine([*self.verdicts, Outcome.BLOCKED])


class Results(_Record):
    """Everything a run concluded."""

    schema_version: Literal[1] = 1
    run: str
    """Name of the run directory."""
    target: str
    requested: str
    """What was asked for, in words: `level 0,6`."""
    seed: int
    overrides: list[str] = Field(default_factory=list)
    timeout_seconds: float
    """Time limit of each launched command."""
    started_at: str
    """UTC, ISO 8601."""
    finished_at: str | None = None
    """UTC; None while the run is not over, or was killed."""
    seatrial_version: str
    left_out: dict[str, str] = Field(default_factory=dict)
    """Trials that were asked for and not run, by name, with the reason: a budget that they do not fit in."""
    repositories: dict[str, str] = Field(default_factory=dict)
    """Repository by what it holds: `commit abc123, 2 files changed`."""
    trials: list[TrialResult]

    @property
    def outcome(self) -> Outcome:
        """The whole: Fail if anything requested failed, else Blocked, else Pass, else Skipped."""
        return combine(trial.outcome for trial in self.trials)

    def requested_trials(self) -> list[TrialResult]:
        """Return the trials that were asked for, in order."""
        return [trial for trial in self.trials if trial.requested]

    def to_text(self) -> str:
        """Return the JSON text of `results.json`; a value that is not finite is text in it."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Results:
        """Read what `to_text` wrote.

        Raises:
            ValueError: the text is not a results file of this schema version; the message is one line.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the file"
            raise ValueError(f"{place}: {first['msg']}") from error
