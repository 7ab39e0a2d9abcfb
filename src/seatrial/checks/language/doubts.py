"""What keeps the answer of a check from being believed: damage, dropped values, two values for one step, two runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from seatrial.checks.language.nodes import Check, SeriesRef
from seatrial.checks.language.reading import Evidence, listed
from seatrial.evidence.runlog import RunLog
from seatrial.verdict import Outcome

_NUM_RUNS_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is asked of a log as a whole, and what its owner says of it."""

    steps: int | None = None
    """Last step of the run; a log that is cut off behind it is whole."""
    conflicts: Literal["ask", "last"] = "ask"
    """Where one step has two values that differ: Blocked, or the last one written counts."""
    several_runs: Literal["ask", "newest"] = "ask"
    """Where the files look like several runs: Blocked, or the newest one is meant."""


NO_TERMS = Terms()
"""Nothing is asked of the log as a whole, and nothing said."""


@dataclass
class Finding:
    """An outcome, and what was found on the way to it."""

    outcome: Outcome
    reason: str
    details: dict[str, Any] = field(default_factory=dict)

    def block(self, why: str) -> None:
        """Withhold what would pass, and say why."""
        if self.outcome in (Outcome.PASS, Outcome.SKIPPED):
            self.details["readable_part"] = f"{self.outcome.value}: {self.reason}"
            self.outcome, self.reason = Outcome.BLOCKED, why
        else:
            self.reason += f"; {why}"


def weigh(check: Check, evidence: Evidence, finding: Finding, terms: Terms, *, is_settled: bool) -> Finding:
    """Say what is left of an answer in view of the logs it was read from.

    Args:
        check: what was asked.
        evidence: the logs, and what was read of them.
        finding: the answer of the check alone; it is changed.
        terms: what is asked of the log, and said of it.
        is_settled: nothing that may be missing at the end of the logs can change the answer.
    """
    logs = [evidence.logs[run] for run in dict.fromkeys(reference.run for reference in check.references)]
    for log in logs:
        _weigh_runs(log, finding, terms)
    for reference in check.references:
        _weigh_conflicts(reference, evidence, finding, terms)
    _weigh_damage(logs, finding, is_settled)
    for reference in check.references:
        _weigh_dropped(reference, evidence, finding)
    return finding


def _weigh_damage(logs: list[RunLog], finding: Finding, is_settled: bool) -> None:
    damage = [item for log in logs for item in log.damage]
    if not damage:
        return
    finding.details["damage"] = [f"{item.path}: {item.what}" for item in damage]
    more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
    if is_settled and all(item.is_cut for item in damage):
        finding.reason += f"; the log is {damage[0].what}{more}, which cannot change this"
        return
    finding.details.setdefault("readable_part", f"{finding.outcome.value}: {finding.reason}")
    finding.outcome = Outcome.BLOCKED
    finding.reason = f"the log is damaged: {damage[0].path}: {damage[0].what}{more}"


def _weigh_runs(log: RunLog, finding: Finding, terms: Terms) -> None:
    if len(log.runs) < 2:
        return
    names = [run[0] for run in log.runs]
    finding.details["runs"] = names
    named = ", ".join(names[:_NUM_RUNS_NAMED]) + (" ..." if len(names) > _NUM_RUNS_NAMED else "")
    what = f"the log looks like {len(names)} runs, each of which begins anew ({named})"
    if terms.several_runs == "newest":
        finding.reason += f"; {what}; the newest is meant"
    else:
        finding.block(
            f"{what}: name the log of one, judge each with --several-runs each, or say with --several-runs newest "
            "that the last one is meant"
        )


def _weigh_conflicts(reference: SeriesRef, evidence: Evidence, finding: Finding, terms: Terms) -> None:
    series = evidence.logs[reference.run].series.get(reference.tag)
    if series is None or series.disputed is None or evidence.tally.steps is None:
        return
    first, last = evidence.tally.steps
    steps = [int(step) for step in series.disputed if first <= step <= last]
    if not steps:
        return
    finding.details.setdefault("conflicts", {})[reference.label] = steps
    what = f"{reference.label} has values that differ at step{'s' if len(steps) > 1 else ''} {listed(steps)}"
    if terms.conflicts == "last":
        finding.reason += f"; {what}; the last one written counts"
    else:
        finding.block(
            f"{what}, and nothing says which is meant: name the log of one writer, or say --conflicts last"
        )


def _weigh_dropped(reference: SeriesRef, evidence: Evidence, finding: Finding) -> None:
    """Name the steps in the range read whose value the writer of the log probably dropped."""
    log = evidence.logs[reference.run]
    if reference.tag not in log.dropped or evidence.tally.steps is None:
        return
    first, last = evidence.tally.steps
    held = log.series[reference.tag].steps
    steps = [
        int(step)
        for step in log.dropped[reference.tag]
        if (first <= held[0] or step > first) and (last >= held[-1] or step < last)
    ]
    if not steps:
        return
    finding.details.setdefault("dropped", {})[reference.label] = steps
    if reference.tag not in evidence.allow_nonfinite and finding.outcome in (Outcome.PASS, Outcome.SKIPPED):
        finding.outcome = Outcome.BLOCKED
    finding.reason += (
        f"; {reference.label} has no value at step{'s' if len(steps) > 1 else ''} {listed(steps)}, "
        "and its writer drops what is not finite"
    )
