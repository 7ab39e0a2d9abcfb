"""What more of a series could still change: decides what can be said of a log whose end is missing.

A value of a condition is settled when no points after those that were read can change it: a maximum above its bound
stays above it, and steps 1 to 20 are what they are once they are logged.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping

from seatrial.checks.language.evaluator import COMPARE
from seatrial.checks.language.nodes import (
    Absolute,
    Aggregate,
    Arithmetic,
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
from seatrial.evidence.runlog import RunLog


class _Course(enum.Enum):
    """How a number can change when a log goes on."""

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
    """Say whether a condition has this value whatever else is logged.

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
