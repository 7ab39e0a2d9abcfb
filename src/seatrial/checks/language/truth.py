"""What can be said of a condition before any run: always true, never true, or open.

Two arguments are used: the intervals of both sides, and, where one expression alone is held to literal bounds,
its truth at the bounds, between them and beyond them (a condition on one number changes nowhere else).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from seatrial.checks.language.evaluator import COMPARE
from seatrial.checks.language.intervals import Interval, interval_of
from seatrial.checks.language.nodes import (
    Aggregate,
    Comparison,
    ComparisonOperator,
    Condition,
    Expression,
    Logic,
    Membership,
    Not,
    Number,
)

_CENTRAL = frozenset({"min", "max", "mean", "median", "quantile", "first", "last"})


def truth_of(condition: Condition, ranges: Mapping[str, Interval]) -> bool | None:
    """Return True where a condition holds on every finite and complete log, False where on none, else None."""
    by_points = _at_points(condition, ranges)
    if by_points is not None:
        return by_points
    match condition:
        case Comparison(operands=operands, operators=operators):
            links = zip(operators, itertools.pairwise(operands), strict=True)
            return _all([_link(sign, left, right, ranges) for sign, (left, right) in links])
        case Membership():
            return None
        case Not(condition=inner):
            return _not(truth_of(inner, ranges))
        case Logic(operator="and", parts=parts):
            return _all([*(truth_of(part, ranges) for part in parts), *_by_expression("and", parts, ranges)])
        case Logic(parts=parts):
            answers = [*(truth_of(part, ranges) for part in parts), *_by_expression("or", parts, ranges)]
            return _not(_all([_not(answer) for answer in answers]))


def _all(answers: Sequence[bool | None]) -> bool | None:
    if any(answer is False for answer in answers):
        return False
    return True if all(answer is True for answer in answers) else None


def _not(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _link(
    sign: ComparisonOperator, left: Expression, right: Expression, ranges: Mapping[str, Interval]
) -> bool | None:
    """Return what is known of one comparison of two sides."""
    if left == right:
        return sign in ("<=", ">=", "==")
    if sign in (">", ">="):
        return _link("<" if sign == ">" else "<=", right, left, ranges)
    one, other = interval_of(left, ranges), interval_of(right, ranges)
    apart = one.high < other.low or other.high < one.low
    match sign:
        case "<":
            if one.high < other.low:
                return True
            return False if one.low >= other.high or _ordered(right, left) else None
        case "<=":
            if one.high <= other.low or _ordered(left, right):
                return True
            return False if one.low > other.high else None
        case "==":
            return False if apart else True if _single(one) and one == other else None
        case _:
            return True if apart else False if _single(one) and one == other else None


def _single(interval: Interval) -> bool:
    return interval.low == interval.high


def _ordered(smaller: Expression, larger: Expression) -> bool:
    """Say whether one aggregate can never exceed another of the same points: `min <= mean <= max`."""
    if not (isinstance(smaller, Aggregate) and isinstance(larger, Aggregate)):
        return False
    same_points = smaller.series == larger.series and smaller.range == larger.range
    both_central = {smaller.function, larger.function} <= _CENTRAL
    return same_points and both_central and (smaller.function == "min" or larger.function == "max")


def _by_expression(
    joiner: str, parts: Sequence[Condition], ranges: Mapping[str, Interval]
) -> list[bool | None]:
    """Return what is known of the parts that hold the same expression to literal bounds, taken together."""
    groups: dict[Expression, list[Condition]] = {}
    for part in parts:
        subject = _subject(part)
        if subject is not None:
            groups.setdefault(subject, []).append(part)
    together = [tuple(group) for group in groups.values() if 1 < len(group) < len(parts)]
    known = [
        _at_points(Logic(operator="or" if joiner == "or" else "and", parts=group), ranges)
        for group in together
    ]
    # A group that is always true says nothing of an `and`, and one that is never true nothing of an `or`.
    return [answer for answer in known if answer is (joiner == "or")]


def _subject(condition: Condition) -> Expression | None:
    """Return the one expression that a condition holds to literal bounds, if there is just one."""
    match condition:
        case Comparison(operands=operands):
            subjects = {operand for operand in operands if not isinstance(operand, Number)}
        case Not(condition=inner):
            return _subject(inner)
        case Logic(parts=parts):
            found = {_subject(part) for part in parts}
            return found.pop() if len(found) == 1 else None
        case Membership():
            return None
    return subjects.pop() if len(subjects) == 1 else None


def _at_points(condition: Condition, ranges: Mapping[str, Interval]) -> bool | None:
    """Try a condition on one expression at each point where its truth could change."""
    subject = _subject(condition)
    if subject is None:
        return None
    inside = interval_of(subject, ranges)
    bounds = sorted(
        {*_literals(condition), *(end for end in (inside.low, inside.high) if math.isfinite(end))}
    )
    bounds = bounds or [0.0]
    between = [(low + high) / 2 for low, high in itertools.pairwise(bounds)]
    step = 1 + abs(bounds[0]) + abs(bounds[-1])
    points = [bounds[0] - step, *bounds, *between, bounds[-1] + step]
    answers = {_holds(condition, point) for point in points if inside.low <= point <= inside.high}
    return answers.pop() if len(answers) == 1 else None


def _literals(condition: Condition) -> list[float]:
    match condition:
        case Comparison(operands=operands):
            return [operand.value for operand in operands if isinstance(operand, Number)]
        case Not(condition=inner):
            return _literals(inner)
        case Logic(parts=parts):
            return [value for part in parts for value in _literals(part)]
        case Membership():
            return []


def _holds(condition: Condition, point: float) -> bool:
    """Evaluate a condition with its one expression at a value."""
    match condition:
        case Comparison(operands=operands, operators=operators):
            values = [operand.value if isinstance(operand, Number) else point for operand in operands]
            links = zip(operators, itertools.pairwise(values), strict=True)
            return all(COMPARE[sign](left, right) for sign, (left, right) in links)
        case Not(condition=inner):
            return not _holds(inner, point)
        case Logic(operator="and", parts=parts):
            return all(_holds(part, point) for part in parts)
        case Logic(parts=parts):
            return any(_holds(part, point) for part in parts)
        case Membership():
            raise AssertionError("a membership has no one expression")
