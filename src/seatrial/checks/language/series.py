"""Arithmetic on series, point by point: flaws are carried along, and steps must agree."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from seatrial.checks.language.nodes import ArithmeticOperator
from seatrial.checks.language.reading import (
    NUM_STEPS_NAMED,
    TOO_LARGE,
    ZERO_DIVISION,
    Points,
    UnansweredError,
)

Value = Points | float
Floats = npt.NDArray[np.float64]

_OPERATORS: dict[ArithmeticOperator, Callable[[Floats, Floats], Floats]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


def absolute(value: Value, text: str) -> Value:
    """Return the absolute value of a number or of each point."""
    return abs(value) if isinstance(value, float) else _with_values(value, np.abs(value.values), text)


def negate(value: Value, text: str) -> Value:
    """Return a number or each point with the other sign."""
    return -value if isinstance(value, float) else _with_values(value, -value.values, text)


def combine(sign: ArithmeticOperator, left: Value, right: Value, text: str) -> Value:
    """Return `left sign right`.

    Two series are paired by step; where a step has several points the last one written counts.

    Raises:
        UnansweredError: a division of numbers by zero, or series whose steps differ.
    """
    if isinstance(left, float) and isinstance(right, float):
        if sign == "/" and right == 0:
            raise UnansweredError(f"division by zero in {text}")
        with np.errstate(all="ignore"):
            return float(_OPERATORS[sign](np.asarray(left), np.asarray(right)))
    if isinstance(left, Points) and isinstance(right, Points):
        left, right = _paired(left, right)
    return _combine_paired(sign, left, right, text)


def _combine_paired(sign: ArithmeticOperator, left: Value, right: Value, text: str) -> Points:
    """Combine a series with a number, or two series of equal steps."""
    sides = [side for side in (left, right) if isinstance(side, Points)]
    first, second = (np.asarray(side.values if isinstance(side, Points) else side) for side in (left, right))
    flaws = np.maximum.reduce([side.flaws for side in sides])
    with np.errstate(all="ignore"):
        values = _OPERATORS[sign](first, second)
    if sign == "/":
        flaws = np.where((flaws == 0) & (np.broadcast_to(second, flaws.shape) == 0), ZERO_DIVISION, flaws)
    flaws = np.where((flaws == 0) & ~np.isfinite(values), TOO_LARGE, flaws).astype(np.uint8)
    allowed = _merged([side.allowed for side in sides])
    indices = {label: index for side in sides for label, index in side.indices.items()}
    return Points(text, sides[0].steps, values, flaws, allowed, indices)


def _merged(masks: Sequence[Mapping[str, npt.NDArray[np.bool_]]]) -> dict[str, npt.NDArray[np.bool_]]:
    """Return where each tag's value is left out on any side."""
    merged: dict[str, npt.NDArray[np.bool_]] = {}
    for side in masks:
        for tag, mask in side.items():
            merged[tag] = merged[tag] | mask if tag in merged else mask
    return merged


def _with_values(points: Points, values: Floats, text: str) -> Points:
    return Points(text, points.steps, values, points.flaws, points.allowed, points.indices)


def _last_of_each_step(points: Points) -> Points:
    """Keep the last point written at each step, unless an earlier one there is not finite."""
    if len(points) < 2:
        return points
    is_last = np.append(np.diff(points.steps) != 0, True)
    return points.where(is_last | ((points.flaws > 0) & ~points.left_out))


def _paired(left: Points, right: Points) -> tuple[Points, Points]:
    """Return two series with one point a step, and equal steps.

    Raises:
        UnansweredError: the steps differ, or a point that would be dropped is not finite.
    """
    left, right = _last_of_each_step(left), _last_of_each_step(right)
    if np.array_equal(left.steps, right.steps):
        return left, right
    parts = []
    for one, other in ((left, right), (right, left)):
        only = np.setdiff1d(one.steps, other.steps)
        if len(only):
            named = ", ".join(str(step) for step in only[:NUM_STEPS_NAMED])
            more = f" and {len(only) - NUM_STEPS_NAMED} more" if len(only) > NUM_STEPS_NAMED else ""
            parts.append(f"{one.label} alone has step{'s' if len(only) > 1 else ''} {named}{more}")
    if not parts:
        parts.append("a step logged twice holds a value that is not finite")
    raise UnansweredError(f"{left.label} and {right.label} cannot be paired: {'; '.join(parts)}")
