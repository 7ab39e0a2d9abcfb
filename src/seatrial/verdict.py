"""The verdict algebra that every sensor follows.

A verdict answers "is it good?" and is based on evidence: `Pass` without samples, or with a value that is
not finite, cannot be built. `Blocked` says that the environment, not the stack, prevented the evidence.

Source: docs/extend/verdicts.md (project convention).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


class Outcome(enum.StrEnum):
    """What a sensor concluded."""

    PASS = "Pass"
    """The evidence shows that the answer is yes."""
    FAIL = "Fail"
    """The stack ran and the answer is no, or it did not leave what the question needs."""
    BLOCKED = "Blocked"
    """The environment prevented the evidence: no GPU, disk full, unreadable log, wrong import path."""
    SKIPPED = "Skipped"
    """Requested, but it did not apply: a rule without its inputs, a relation that never ran its property."""
    NOT_REQUESTED = "NotRequested"
    """Known, and not requested."""


EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_USAGE = 2
EXIT_BLOCKED = 3
EXIT_NOTHING_RAN = 5
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One answer with its evidence."""

    name: str
    """The text of a check, or the name of a relation or deliverable."""
    outcome: Outcome
    reason: str
    """One sentence; for anything but Pass it names the cause and the remedy."""
    value: float | str | None = None
    """What was measured, or None when nothing was."""
    bound: str | None = None
    """The bound of the value, such as `< 1.05`."""
    num_samples: int = 0
    """How many samples the value is based on."""
    steps: tuple[int, int] | None = None
    """First and last step read, both inclusive."""
    source: str | None = None
    """Where the bound came from: `hand-set`, or `learned from N repeats`."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further evidence as JSON values: paths, seeds, the smallest failing input."""

    def __post_init__(self) -> None:
        """Refuse a verdict that contradicts the algebra.

        Raises:
            ValueError: a Pass without samples or with a value that is not finite; a verdict without a reason.
        """
        if not self.reason.strip():
            raise ValueError(f"verdict {self.name!r} has no reason")
        if self.num_samples < 0:
            raise ValueError(f"verdict {self.name!r} rests on {self.num_samples} samples")
        if self.outcome is not Outcome.PASS:
            return
        if self.num_samples == 0:
            raise ValueError(f"verdict {self.name!r} is Pass on zero samples: no evidence is never Pass")
        if isinstance(self.value, float) and not math.isfinite(self.value):
            raise ValueError(f"verdict {self.name!r} is Pass on the value {self.value}")

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values; a value that is not finite becomes its name as text."""
        data = asdict(self)
        data["outcome"] = self.outcome.value
        data["details"] = dict(self.details)
        data["steps"] = list(self.steps) if self.steps else None
        if isinstance(self.value, float) and not math.isfinite(self.value):
            data["value"] = str(self.value)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Read what `to_json` wrote; it is validated again.

        Raises:
            ValueError: the data is not a verdict, or contradicts the algebra.
        """
        try:
            steps = data.get("steps")
            return cls(
                **{
                    **data,
                    "outcome": Outcome(data["outcome"]),
                    "steps": (int(steps[0]), int(steps[1])) if steps else None,
                }
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"not a verdict: {error}") from error


def combine(outcomes: Iterable[Outcome | Verdict]) -> Outcome:
    """Fold the outcomes of everything requested into one.

    Fail if anything failed; else Blocked if anything was blocked; else Pass if something passed; else Skipped.
    `NotRequested` does not count.
    """
    seen = {item.outcome if isinstance(item, Verdict) else item for item in outcomes}
    for outcome in (Outcome.FAIL, Outcome.BLOCKED, Outcome.PASS):
        if outcome in seen:
            return outcome
    return Outcome.SKIPPED


def exit_code(outcome: Outcome) -> int:
    """Return the exit code of a command whose combined outcome this is (0, 1, 3 or 5)."""
    return {
        Outcome.PASS: EXIT_PASS,
        Outcome.FAIL: EXIT_FAIL,
        Outcome.BLOCKED: EXIT_BLOCKED,
        Outcome.SKIPPED: EXIT_NOTHING_RAN,
        Outcome.NOT_REQUESTED: EXIT_NOTHING_RAN,
    }[outcome]
