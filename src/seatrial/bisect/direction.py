"""Derives from a metric's name which of its values are worse."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.bisect.settings import Worse
from seatrial.bisect.task import metric_check
from seatrial.checks.language.nodes import (
    Aggregate,
    Arithmetic,
    Comparison,
    Expression,
    Negate,
    Number,
    Point,
    SeriesRef,
)
from seatrial.vocabulary import Metric, metrics_called

INCREASING = frozenset({"mean", "median", "min", "max", "quantile", "sum", "first", "last", "ratio_above"})
"""Aggregates that do not decrease when a value of the series increases."""


@dataclass(frozen=True, kw_only=True)
class Direction:
    """Which values are worse, and the metric that says so."""

    worse: Worse
    tag: str
    metric: Metric


def direction_of(text: str) -> Direction | None:
    """Return which values of a metric are worse, or None if its name does not say.

    The name says so if the expression rises or falls with a single series, and every stack that logs a series of this
    name agrees on which direction is better.

    Raises:
        UsageError: the metric cannot be read.
    """
    condition = metric_check(text).condition
    assert isinstance(condition, Comparison)
    found = _followed(condition.operands[0])
    if found is None:
        return None
    tag, rises = found
    known = metrics_called(tag)
    if len({metric.better for metric in known}) != 1 or known[0].better is None:
        return None
    higher_is_worse = (known[0].better == "lower") == rises
    return Direction(worse=Worse.HIGHER if higher_is_worse else Worse.LOWER, tag=tag, metric=known[0])


def _followed(node: Expression) -> tuple[str, bool] | None:
    """Return the one series that an expression depends on, and whether it rises with it; None if there is none."""
    match node:
        case SeriesRef(tag=tag, run=None):
            return tag, True
        case Point(series=series):
            return _followed(series)
        case Aggregate(function=name, series=series, argument=argument) if name in INCREASING and (
            argument is None or isinstance(argument, Number)
        ):
            return _followed(series)
        case Negate(operand=operand):
            return _turned(_followed(operand), turned=True)
        case Arithmetic(operator="+" | "-", left=left, right=Number()):
            return _followed(left)
        case Arithmetic(operator="+" | "-" as operator, left=Number(), right=right):
            return _turned(_followed(right), turned=operator == "-")
        case Arithmetic(operator="*" | "/", left=left, right=Number(value=value)) if value != 0:
            return _turned(_followed(left), turned=value < 0)
        case Arithmetic(operator="*", left=Number(value=value), right=right) if value != 0:
            return _turned(_followed(right), turned=value < 0)
        case _:
            return None


def _turned(found: tuple[str, bool] | None, *, turned: bool) -> tuple[str, bool] | None:
    return found if found is None else (found[0], found[1] != turned)
