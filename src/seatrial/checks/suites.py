"""Suites: checks kept in a YAML file, each with why it is there and where its threshold came from.

name: grpo-math-1b
level: 0
steps: 30
allow_nonfinite: [train/reward/stddev]
checks:
  - expression: max(data["train/token_mult_prob_error"]) < 1.05
    why: sampler and trainer give the same token the same probability
    source: hand-set
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from seatrial.checks.evaluate import HAND_SET, evaluate_check
from seatrial.checks.known_ranges import KNOWN_RANGES
from seatrial.checks.language.doubts import NO_TERMS, Terms
from seatrial.checks.language.grammar import parse_check
from seatrial.checks.language.nodes import Check
from seatrial.checks.language.truth import Interval
from seatrial.errors import UsageError
from seatrial.evidence.runlog import RunLog
from seatrial.nearest import hint
from seatrial.strict_yaml import read_yaml
from seatrial.verdict import Outcome, Verdict

NUM_ERRORS_SHOWN = 5
"""Errors of a file that one message lists."""

Text = Annotated[str, Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SuiteCheck(_Part):
    """One check of a suite."""

    expression: Text
    """In the check language."""
    why: Text
    """What a failure would mean."""
    source: Text = HAND_SET
    """Where the threshold came from: `hand-set`, `learned from 8 repeats`, a path, a link."""
    severity: Literal["error", "warning"] = "error"
    """A `warning` that does not hold is shown and ends Skipped: it fails nothing and passes nothing."""
    allow_nonfinite: tuple[Text, ...] = Field(default=(), strict=False)
    """Tags whose NaN, infinite and null points are legitimate in this check."""

    def read(self) -> Check:
        """Return the check, read.

        Raises:
            UsageError: the expression is not in the language.
        """
        return parse_check(self.expression)


class Suite(_Part):
    """A named set of checks."""

    name: Text
    level: int | None = Field(default=None, ge=0, le=6)
    """Coverage level that the suite serves."""
    description: str = ""
    allow_nonfinite: tuple[Text, ...] = Field(default=(), strict=False)
    """Tags whose NaN, infinite and null points are legitimate in every check."""
    ranges: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(default_factory=dict)
    """Tag or pattern -> smallest and largest value it can take by construction, in addition to those that are known."""
    parameters: dict[str, str] = Field(default_factory=dict)
    """Which runs the suite is for: names and values of what the run is started with. For the reader alone."""
    steps: int | None = Field(default=None, ge=0)
    """The run must have logged this step, or a later one."""
    steps_of: Text | None = None
    """The tag whose steps count; without it every series does whose step is no clock."""
    conflicts: Literal["ask", "last"] = "ask"
    """Where one step has two values that differ: Blocked, or the last one written counts."""
    several_runs: Literal["ask", "newest"] = "ask"
    """Where the files look like several runs: Blocked, or the newest one is meant."""
    checks: tuple[SuiteCheck, ...] = Field(strict=False)
    """May be empty if `steps` is given."""

    def terms(self, given: Terms) -> Terms:
        """Return what holds for the checks of this suite: its own word where it has one, else what was given."""
        return Terms(
            steps=given.steps if self.steps is None else self.steps,
            conflicts=given.conflicts if self.conflicts == "ask" else self.conflicts,
            several_runs=given.several_runs if self.several_runs == "ask" else self.several_runs,
        )


def load_suite(path: Path) -> Suite:
    """Read a suite and each of its expressions.

    Raises:
        UsageError: the file cannot be read, is not a suite, or holds an expression that is not in the language.
    """
    return read_suite(read_yaml(path, "suite"), str(path))


def read_suite(content: object, origin: str) -> Suite:
    """Validate what a YAML file holds.

    Raises:
        UsageError: one message with every fault, by its dotted place.
    """
    if not isinstance(content, Mapping):
        raise UsageError(
            f"suite {origin}: holds {type(content).__name__}, not a mapping with name and checks"
        )
    try:
        suite = Suite.model_validate(dict(content))
        if not suite.checks and suite.steps is None:
            raise UsageError(
                f"suite {origin}: checks: holds none, and no steps are asked for: nothing would be judged"
            )
        if suite.steps_of is not None and suite.steps is None:
            raise UsageError(
                f"suite {origin}: steps_of: names the series whose steps count, but steps is not given"
            )
        for tag, (low, high) in suite.ranges.items():
            if not low <= high:
                raise UsageError(f"suite {origin}: ranges.{tag}: {low} is not below {high}")
    except ValidationError as error:
        raise UsageError(f"suite {origin}: {_faults(error)}") from error
    for number, item in enumerate(suite.checks):
        try:
            item.read()
        except UsageError as error:
            raise UsageError(f"suite {origin}: checks.{number}.expression: {error}") from error
    return suite


def evaluate_suite(
    suite: Suite,
    log: RunLog,
    *,
    runs: Mapping[str, RunLog] | None = None,
    allow_nonfinite: Collection[str] = (),
    ranges: Mapping[str, Interval] = KNOWN_RANGES,
    terms: Terms = NO_TERMS,
) -> list[Verdict]:
    """Judge a log by each check of a suite, in its order.

    Raises:
        UsageError: a check reads a run that is not given.
    """
    known = {**ranges, **{tag: Interval(low, high) for tag, (low, high) in suite.ranges.items()}}
    verdicts = []
    for item in suite.checks:
        verdict = evaluate_check(
            item.read(),
            log,
            runs=runs,
            allow_nonfinite={*allow_nonfinite, *suite.allow_nonfinite, *item.allow_nonfinite},
            source=item.source,
            ranges=known,
            terms=suite.terms(terms),
        )
        details: dict[str, Any] = {
            **verdict.details,
            "suite": suite.name,
            "why": item.why,
            "severity": item.severity,
        }
        if item.severity == "warning" and verdict.outcome is Outcome.FAIL:
            verdict = replace(
                verdict, outcome=Outcome.SKIPPED, reason=f"warning only, would be Fail: {verdict.reason}"
            )
        verdicts.append(replace(verdict, details=details))
    return verdicts


def _faults(error: ValidationError) -> str:
    """Word the faults that pydantic found: dotted place, what is wrong, nearest key."""
    shown = []
    for fault in error.errors(include_url=False)[:NUM_ERRORS_SHOWN]:
        place = ".".join(str(part) for part in fault["loc"])
        message = fault["msg"]
        if fault["type"] == "extra_forbidden":
            fields = SuiteCheck.model_fields if "checks" in fault["loc"] else Suite.model_fields
            message = f"unknown key; {hint(str(fault['loc'][-1]), fields)}"
        elif fault["type"] == "missing":
            message = "is missing"
        shown.append(f"{place}: {message}" if place else message)
    more = error.error_count() - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
