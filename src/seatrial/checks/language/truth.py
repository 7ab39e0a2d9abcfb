"""What can be said of a condition before any run: always true, never true, or open.

Two arguments are used: interval arithmetic on both sides, and, where a single expression is compared with literal
bounds, its truth at the bounds, between them and beyond them (a condition on one number changes nowhere else).
An infinite end of an interval means unbounded: values that a check compares are finite, so it is never reached.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from seatrial.checks.language.evaluator import COMPARE
from seatrial.checks.language.nodes import (
    Absolute,
    Aggregate,
    Arithmetic,
    Comparison,
    ComparisonOperator,
    Condition,
    Expression,
    Logic,
    Membership,
    Negate,
    Not,
    Number,
    Point,
    SeriesRef,
)


@dataclass(frozen=True)
class Interval:
    """A closed interval of finite numbers."""

    low: float = -math.inf
    high: float = math.inf
    why: str = field(default="by construction", compare=False)
    """Where it comes from, as it ends a sentence."""

    def __post_init__(self) -> None:
        """Refuse an empty interval.

        Raises:
            ValueError: `low` is above `high`, or one of them is not a number.
        """
        if not self.low <= self.high:
            raise ValueError(f"no interval from {self.low} to {self.high}")

    def __str__(self) -> str:
        """Return the interval as a predicate: `is at least 0`, `is between 0.8 and 1.2`."""
        if self.low == self.high:
            return f"is always {self.low:g}"
        if math.isinf(self.high):
            return "can be anything" if math.isinf(self.low) else f"is at least {self.low:g}"
        return (
            f"is at most {self.high:g}"
            if math.isinf(self.low)
            else f"is between {self.low:g} and {self.high:g}"
        )


EVERYTHING = Interval()
NOT_NEGATIVE = Interval(0.0)
_WITHIN_THE_SERIES = frozenset({"min", "max", "mean", "median", "quantile", "first", "last"})
"""Functions whose result is between the smallest and the largest value read."""


def interval_of(node: Expression, ranges: Mapping[str, Interval]) -> Interval:
    """Return the values that an expression can take, or one point of it where it is a series.

    Args:
        node: an expression of a check.
        ranges: by tag, or pattern of tags such as `timing/*`, the values that the tag can take.
    """
    match node:
        case Number(value=value):
            return Interval(value, value)
        case SeriesRef(tag=tag):
            return range_of(tag, ranges)
        case Point(series=series):
            return interval_of(series, ranges)
        case Absolute(operand=operand):
            return _absolute(interval_of(operand, ranges))
        case Negate(operand=operand):
            inner = interval_of(operand, ranges)
            return Interval(-inner.high, -inner.low)
        case Arithmetic(operator=operator, left=left, right=right):
            if left == right:
                return _of_equals(operator, interval_of(left, ranges))
            return _combine(operator, interval_of(left, ranges), interval_of(right, ranges))
        case Aggregate():
            return _aggregate(node, interval_of(node.series, ranges))


def range_of(tag: str, ranges: Mapping[str, Interval]) -> Interval:
    """Return the known range of a tag: its own entry, else the intersection of the patterns that match it."""
    if tag in ranges:
        return ranges[tag]
    matching = [
        interval for pattern, interval in ranges.items() if "*" in pattern and fnmatchcase(tag, pattern)
    ]
    if len(matching) == 1:
        return matching[0]
    low = max((interval.low for interval in matching), default=-math.inf)
    high = min((interval.high for interval in matching), default=math.inf)
    return Interval(low, high) if low <= high else EVERYTHING


def _absolute(inner: Interval) -> Interval:
    low = 0.0 if inner.low <= 0 <= inner.high else min(abs(inner.low), abs(inner.high))
    return Interval(low, max(abs(inner.low), abs(inner.high)))


def _of_equals(operator: str, inner: Interval) -> Interval:
    """Return the interval of an expression combined with itself: differences are 0, squares are not negative."""
    match operator:
        case "-":
            return Interval(0.0, 0.0)
        case "/":
            return Interval(1.0, 1.0)
        case "*":
            squared = _absolute(inner)
            return Interval(squared.low * squared.low, squared.high * squared.high)
        case _:
            return Interval(2 * inner.low, 2 * inner.high)


def _combine(operator: str, left: Interval, right: Interval) -> Interval:
    match operator:
        case "+":
            return Interval(left.low + right.low, left.high + right.high)
        case "-":
            return Interval(left.low - right.high, left.high - right.low)
        case "*":
            return _hull(_times(a, b) for a in (left.low, left.high) for b in (right.low, right.high))
        case _:
            if right.low <= 0 <= right.high:
                return EVERYTHING
            return _hull(_over(a, b) for a in (left.low, left.high) for b in (right.low, right.high))


def _times(a: float, b: float) -> float:
    """Multiply ends: 0 times an end that is never reached is 0."""
    return 0.0 if a == 0 or b == 0 else a * b


def _over(a: float, b: float) -> float:
    """Divide ends: anything over an end that is never reached tends to 0, unless both are unbounded."""
    if math.isinf(b):
        return math.copysign(math.inf, a * b) if math.isinf(a) else 0.0
    return a / b


def _hull(ends: Iterable[float]) -> Interval:
    known = list(ends)
    return Interval(min(known), max(known))


def _aggregate(node: Aggregate, inner: Interval) -> Interval:
    """Return what an aggregate of values in an interval can be."""
    match node.function:
        case name if name in _WITHIN_THE_SERIES:
            return inner
        case "ratio_above" | "coverage":
            return Interval(0.0, 1.0)
        case "len" | "count":
            return NOT_NEGATIVE
        case "std":
            return Interval(0.0, inner.high - inner.low)
        case "sum":
            return Interval(min(inner.low, -math.inf if inner.low < 0 else inner.low), _sum_high(inner))
        case _:
            return EVERYTHING


def _sum_high(inner: Interval) -> float:
    """A sum of at least one value that is never positive is at most the largest of them."""
    return inner.high if inner.high <= 0 else math.inf


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
    """Return what is known of the parts that compare the same expression with literal bounds, taken together."""
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
    """Return the expression that a condition compares with literal bounds, if there is just one."""
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
