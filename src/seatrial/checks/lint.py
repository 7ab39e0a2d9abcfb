"""Static analysis of checks, before any GPU is used: checks that cannot fail, tags and steps that will not be there."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from seatrial.checks.known_ranges import KNOWN_RANGES
from seatrial.checks.language.nodes import (
    After,
    Aggregate,
    Check,
    Comparison,
    Last,
    Membership,
    Number,
    Point,
    Positions,
    Range,
    Steps,
    walk,
)
from seatrial.checks.language.reading import as_step, nearest
from seatrial.checks.language.truth import EVERYTHING, Interval, interval_of, range_of, truth_of
from seatrial.evidence.runlog import RunLog

FLOAT32_SLACK = 1e-6
"""Relative distance by which a logged float32 may miss the end of its range."""


class FindingKind(enum.StrEnum):
    """What is wrong with a check."""

    CANNOT_FAIL = "cannot fail"
    """It holds on every finite, complete log: a Pass would say nothing."""
    CANNOT_PASS = "cannot pass"
    """It holds on no log."""
    UNKNOWN_TAG = "unknown tag"
    """It reads a tag that the target never logs."""
    STEP_OUT_OF_REACH = "step out of reach"
    """It reads a step that the run does not reach."""
    ONE_STEP_DECIDES = "one step decides"
    """It holds as soon as one step was good (`max(...) > 0.5`): a collapse after it is not seen. A note only."""

    @property
    def is_note(self) -> bool:
        """Say whether the check can stand as it is."""
        return self is FindingKind.ONE_STEP_DECIDES


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault of a check that is known before the run."""

    kind: FindingKind
    message: str
    column: int

    def __str__(self) -> str:
        return f"{self.kind.value} (column {self.column}): {self.message}"


def lint_check(
    check: Check,
    known_tags: Collection[str] | None = None,
    ranges: Mapping[str, Interval] = KNOWN_RANGES,
    max_num_steps: int | None = None,
) -> list[Finding]:
    """Find what is wrong with a check before there is a log.

    Args:
        check: what `parse_check` read.
        known_tags: tags, or patterns such as `timing/*`, that the target logs; None: not known.
        ranges: by tag or pattern, the values that a tag can take by construction.
        max_num_steps: last step of the run; None: not known.
    """
    findings = [*_truth_findings(check, ranges), *_one_step_findings(check)]
    if known_tags is not None:
        findings += _tag_findings(check, known_tags)
    if max_num_steps is not None:
        findings += _step_findings(check, max_num_steps)
    return findings


def cannot_fail(check: Check, log: RunLog, ranges: Mapping[str, Interval] = KNOWN_RANGES) -> str | None:
    """Return why a check that holds on a log could not have failed on any, or None when it could.

    A range that the log itself contradicts (another clip, a sentinel) is not believed.
    """
    believed = {
        tag: Interval() if _contradicted(log, tag, range_of(tag, ranges)) else range_of(tag, ranges)
        for tag in check.tags().union(*(check.tags(run) for run in check.runs))
    }
    findings = [item for item in _truth_findings(check, believed) if item.kind is FindingKind.CANNOT_FAIL]
    return findings[0].message if findings else None


def _contradicted(log: RunLog, tag: str, known: Interval) -> bool:
    """Say whether a log holds a finite value outside a range."""
    if tag not in log.series or known == EVERYTHING:
        return False
    values = log.series[tag].values
    values = values[np.isfinite(values)]
    slack = FLOAT32_SLACK * np.maximum(1.0, np.abs(values))
    return bool(((values < known.low - slack) | (values > known.high + slack)).any())


def _truth_findings(check: Check, ranges: Mapping[str, Interval]) -> list[Finding]:
    truth = truth_of(check.condition, ranges)
    if truth is None:
        return []
    kind = FindingKind.CANNOT_FAIL if truth else FindingKind.CANNOT_PASS
    otherwise = f"{check.text} is {'always' if truth else 'never'} true"
    message = "; ".join(_reasons(check, ranges)) or otherwise
    return [Finding(kind=kind, message=message, column=check.condition.column)]


def _reasons(check: Check, ranges: Mapping[str, Interval]) -> list[str]:
    """Name the ranges that decide: of each measured side that is not free."""
    reasons = []
    for comparison in (node for node in walk(check.condition) if isinstance(node, Comparison)):
        for operand in comparison.operands:
            interval = interval_of(operand, ranges)
            if not isinstance(operand, Number) and interval != EVERYTHING:
                reasons.append(f"{operand.text} {interval} {interval.why}")
    return list(dict.fromkeys(reasons))


def _one_step_findings(check: Check) -> list[Finding]:
    """Note each comparison that the best step alone can satisfy."""
    findings = []
    for comparison in (node for node in walk(check.condition) if isinstance(node, Comparison)):
        links = zip(comparison.operators, itertools.pairwise(comparison.operands), strict=True)
        for sign, (left, right) in links:
            larger, smaller = (left, right) if sign in (">", ">=") else (right, left)
            best = [
                side
                for side, name in ((larger, "max"), (smaller, "min"))
                if isinstance(side, Aggregate) and side.function == name and sign in ("<", "<=", ">", ">=")
            ]
            findings += [
                Finding(
                    kind=FindingKind.ONE_STEP_DECIDES,
                    message=f"{side.text} is one step of the run; mean(..., last(5)) or slope(...) sees the rest",
                    column=side.column,
                )
                for side in best
            ]
    return findings


def _tag_findings(check: Check, known_tags: Collection[str]) -> list[Finding]:
    findings = []
    for reference in check.references:
        known = reference.tag in known_tags or any(
            fnmatchcase(reference.tag, pattern) for pattern in known_tags if "*" in pattern
        )
        if not known and reference.run is None:
            near = nearest(reference.tag, known_tags)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            message = f'the target never logs "{reference.tag}"{hint}'
            findings.append(Finding(kind=FindingKind.UNKNOWN_TAG, message=message, column=reference.column))
    return findings


def _step_findings(check: Check, max_num_steps: int) -> list[Finding]:
    findings = []
    for node in walk(check.condition):
        match node:
            case Point(key=key) | Membership(key=key):
                step = as_step(key)
                reached = step is not None and step <= max_num_steps
                what = f"step {key}"
            case Aggregate(range=chosen) if chosen is not None:
                reached, what = _within(chosen, max_num_steps), chosen.text
            case _:
                continue
        if not reached:
            message = f"{what} is beyond the last step, {max_num_steps}"
            findings.append(Finding(kind=FindingKind.STEP_OUT_OF_REACH, message=message, column=node.column))
    return findings


def _within(chosen: Range, max_num_steps: int) -> bool:
    """Whether a run of that many steps, each logged, has all steps of a range."""
    match chosen:
        case Steps(last=last):
            return last <= max_num_steps
        case After(step=step):
            return step < max_num_steps
        case Last(count=count):
            return count <= max_num_steps
        case Positions(start=start, end=end):
            return max(abs(start), abs(end) - 1) <= max_num_steps
