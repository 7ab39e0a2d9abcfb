"""Why an answer may not be trusted (damage, dropped or conflicting values, several runs), and what cannot change it."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from seatrial.checks.language.evaluator import COMPARE
from seatrial.checks.language.nodes import (
    Absolute,
    Aggregate,
    Arithmetic,
    Check,
    Comparison,
    ComparisonOperator,
    Condition,
    Expression,
    Last,
    Logic,
    Membership,
    Negate,
    Not,
    Number,
    Point,
    Positions,
    SeriesRef,
    Steps,
    references,
)
from seatrial.checks.language.reading import Evidence, listed
from seatrial.evidence.runlog import RunLog
from seatrial.verdict import Outcome


class _Course(enum.Enum):
    """How a number can change when a log grows."""

    STAYS = 0
    GROWS = 1
    SHRINKS = 2
    OPEN = 3


_MIRRORED = {_Course.GROWS: _Course.SHRINKS, _Course.SHRINKS: _Course.GROWS}
_BY_FUNCTION = {
    "max": _Course.GROWS,
    "count": _Course.GROWS,
    "len": _Course.GROWS,
    "min": _Course.SHRINKS,
    "first": _Course.STAYS,
}


def is_settled(
    condition: Condition, holds: bool, values: Mapping[int, float | bool], logs: Mapping[str | None, RunLog]
) -> bool:
    """Whether a condition keeps this value, regardless of what else is logged.

    Args:
        condition: what was evaluated.
        holds: its value, or that of a part of it.
        values: value of each operand and membership by its id, as the evaluator remembers them.
        logs: the logs that were read, by the name of the run.
    """
    match condition:
        case Comparison(operands=operands, operators=operators):
            links = [
                _is_link_settled(sign, left, right, holds, values, logs)
                for sign, (left, right) in zip(operators, itertools.pairwise(operands), strict=True)
            ]
            return all(links) if holds else any(links)
        case Membership():
            # A step that is there stays there.
            return bool(values[id(condition)]) and holds is not condition.negated
        case Not(condition=inner):
            return is_settled(inner, not holds, values, logs)
        case Logic(operator=joiner, parts=parts):
            answers = [is_settled(part, holds, values, logs) for part in parts]
            return all(answers) if (joiner == "and") is holds else any(answers)


def reach(tag: str, log: RunLog, last: int) -> bool:
    """Say whether a series has a point at a step or after it."""
    series = log.series.get(tag)
    return tag in log.scalars or (series is not None and len(series) > 0 and int(series.steps.max()) >= last)


def _is_link_settled(
    sign: ComparisonOperator,
    left: Expression,
    right: Expression,
    holds: bool,
    values: Mapping[int, float | bool],
    logs: Mapping[str | None, RunLog],
) -> bool:
    """Say whether one comparison has a value, and keeps it."""
    if COMPARE[sign](values[id(left)], values[id(right)]) is not holds:
        return False
    courses = {_course(left, logs), _MIRRORED.get(_course(right, logs), _course(right, logs))}
    if courses == {_Course.STAYS}:
        return True
    # The difference of the sides grows, shrinks, or may do either.
    courses.discard(_Course.STAYS)
    keeps = {_Course.GROWS: (">", ">="), _Course.SHRINKS: ("<", "<=")}
    if len(courses) > 1 or sign in ("==", "!="):
        return False
    kept = keeps.get(courses.pop(), ())
    return bool(kept) and (sign in kept) is holds


def _course(node: Expression, logs: Mapping[str | None, RunLog]) -> _Course:
    match node:
        case Number():
            return _Course.STAYS
        case Point():
            return _Course.STAYS
        case Aggregate(range=Steps(last=last)):
            read = references(node)
            whole = all(reach(one.tag, logs[one.run], last) for one in read)
            return _Course.STAYS if whole else _of_function(node)
        case Aggregate():
            return _of_function(node)
        case SeriesRef(tag=tag, run=run):
            return _Course.STAYS if tag in logs[run].scalars else _Course.OPEN
        case Negate(operand=operand):
            course = _course(operand, logs)
            return _MIRRORED.get(course, course)
        case Absolute(operand=operand):
            return _Course.STAYS if _course(operand, logs) is _Course.STAYS else _Course.OPEN
        case Arithmetic(operator=sign, left=left, right=right):
            return _of_arithmetic(sign, _course(left, logs), _course(right, logs))


def _of_function(node: Aggregate) -> _Course:
    # The last points, and those numbered from the end, are others when more is logged.
    if isinstance(node.range, Last | Positions) or node.ignore_top_p or node.argument is not None:
        return _Course.OPEN
    return _BY_FUNCTION.get(node.function, _Course.OPEN)


def _of_arithmetic(sign: str, left: _Course, right: _Course) -> _Course:
    if left is right is _Course.STAYS:
        return _Course.STAYS
    if sign == "-":
        right = _MIRRORED.get(right, right)
    elif sign != "+":
        return _Course.OPEN
    courses = {left, right} - {_Course.STAYS}
    return courses.pop() if len(courses) == 1 else _Course.OPEN


_NUM_RUNS_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Requirements on a log as a whole, and what the user knows about it."""

    steps: int | None = None
    """Last step of the run; a log that is cut off behind it is whole."""
    conflicts: Literal["ask", "last"] = "ask"
    """Where one step has two values that differ: Blocked, or the last one written counts."""
    several_runs: Literal["ask", "newest"] = "ask"
    """Where the files look like several runs: Blocked, or the newest one is meant."""


NO_TERMS = Terms()
"""No requirements on the log as a whole, and nothing known about it."""


@dataclass
class Finding:
    """An outcome, and what was found on the way to it."""

    outcome: Outcome
    reason: str
    details: dict[str, Any] = field(default_factory=dict)

    def block(self, why: str) -> None:
        """Block an outcome that would pass, and say why."""
        if self.outcome in (Outcome.PASS, Outcome.SKIPPED):
            self.details["readable_part"] = f"{self.outcome.value}: {self.reason}"
            self.outcome, self.reason = Outcome.BLOCKED, why
        else:
            self.reason += f"; {why}"


def weigh(check: Check, evidence: Evidence, finding: Finding, terms: Terms, *, is_settled: bool) -> Finding:
    """Return the answer of a check, corrected for doubts about the logs it was read from.

    Args:
        check: the check.
        evidence: the logs, and what was read of them.
        finding: the answer of the check alone; it is changed.
        terms: requirements on the log, and what the user knows about it.
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
        finding.reason += f"; the log is {damage[0].what}{more}, which cannot change the answer"
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
    what = f"the log looks like {len(names)} runs, each of which starts again ({named})"
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
