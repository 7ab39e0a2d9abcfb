"""Interval arithmetic over the nodes of a check: which values an expression can take, before any run.

An infinite end means unbounded: values that a check compares are finite, so it is never reached.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from seatrial.checks.language.nodes import (
    Absolute,
    Aggregate,
    Arithmetic,
    Expression,
    Negate,
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
        """Return the interval as what is said of a value: `is at least 0`, `lies from 0.8 to 1.2`."""
        if self.low == self.high:
            return f"is always {self.low:g}"
        if math.isinf(self.high):
            return "can be anything" if math.isinf(self.low) else f"is at least {self.low:g}"
        return (
            f"is at most {self.high:g}"
            if math.isinf(self.low)
            else f"lies from {self.low:g} to {self.high:g}"
        )


EVERYTHING = Interval()
NOT_NEGATIVE = Interval(0.0)
_WITHIN_THE_SERIES = frozenset({"min", "max", "mean", "median", "quantile", "first", "last"})
"""Functions whose result lies between the smallest and the largest value read."""


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
    """Return what an expression gives with itself: differences vanish, squares are not negative."""
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
