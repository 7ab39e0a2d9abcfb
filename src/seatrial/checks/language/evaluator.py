"""Evaluates the nodes of a check: values, series point by point, and truth.

Every part of a condition is evaluated, so that no `or` skips a guard; a guard that is not met (`UnansweredError`)
ends the check with its own outcome, even inside `not` or `or`.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from seatrial.checks.language.functions import FUNCTIONS, drop_top
from seatrial.checks.language.nodes import (
    Absolute,
    After,
    Aggregate,
    Arithmetic,
    ArithmeticOperator,
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
    Range,
    SeriesRef,
    Steps,
)
from seatrial.checks.language.ranges import num_expected, select
from seatrial.checks.language.reading import (
    NUM_STEPS_NAMED,
    TOO_LARGE,
    ZERO_DIVISION,
    Evidence,
    Points,
    UnansweredError,
    as_step,
    span,
)
from seatrial.checks.language.wording import number_text
from seatrial.errors import UsageError

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


COMPARE: dict[ComparisonOperator, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
"""The comparisons of the language."""


class Evaluator:
    """Evaluates one condition on the evidence and remembers the value of each operand."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.values: dict[int, float | bool] = {}
        """id of an operand or a membership -> its value, for the wording of the verdict."""

    def condition(self, node: Condition) -> bool:
        """Return whether a condition holds.

        Raises:
            UnansweredError: a guard is not met.
        """
        match node:
            case Comparison(operands=operands, operators=operators):
                values = [self.number(operand) for operand in operands]
                self.values.update(zip(map(id, operands), values, strict=True))
                pairs = zip(operators, itertools.pairwise(values), strict=True)
                return all(COMPARE[sign](left, right) for sign, (left, right) in pairs)
            case Membership():
                self.values[id(node)] = found = self._is_member(node)
                return found is not node.negated
            case Logic(operator=joiner, parts=parts):
                answers = [self.condition(part) for part in parts]
                return all(answers) if joiner == "and" else any(answers)
            case Not(condition=inner):
                return not self.condition(inner)

    def number(self, node: Expression) -> float:
        """Return the value of an expression that must be one finite number.

        Raises:
            UsageError: it is a series.
            UnansweredError: it is missing, or is not finite.
        """
        value = self.value(node)
        if isinstance(value, Points):
            example = value.steps[-1] if len(value) else 1
            raise UsageError(
                f'{node.text} is a series ({span(value)}) and is compared with a number: choose a step, ["{example}"], '
                "or a function such as max"
            )
        if not math.isfinite(value):
            raise UnansweredError(f"{node.text} is not finite: {value}")
        return value

    def value(self, node: Expression, window: Range | None = None) -> Points | float:
        """Return the points or the number that an expression gives; a window narrows each series to some steps."""
        match node:
            case Number(value=number):
                return number
            case SeriesRef():
                points = self.evidence.read(node)
                if window is None or isinstance(points, float):
                    return points
                return points.where(select(window, points.steps))
            case Point(series=reference, key=key):
                return self.evidence.read_point(reference, key)
            case Aggregate():
                return self._aggregate(node)
            case Absolute(operand=operand):
                return absolute(self.value(operand, window), node.text)
            case Negate(operand=operand):
                return negate(self.value(operand, window), node.text)
            case Arithmetic(operator=sign, left=left, right=right):
                return combine(sign, self.value(left, window), self.value(right, window), node.text)

    def _aggregate(self, node: Aggregate) -> float:
        """Return an aggregate; ranges over steps narrow each series before two are paired."""
        pushed = node.range if isinstance(node.range, Steps | After) else None
        points = self.value(node.series, None if isinstance(node.series, SeriesRef) else pushed)
        if isinstance(points, float):
            raise UnansweredError(
                f"{node.series.text} is one number, {number_text(points)}: compare it without {node.function}"
            )
        spec = FUNCTIONS[node.function]
        argument = 0.0 if node.argument is None else self.number(node.argument)
        chosen = self.evidence.choose(points, node.range, spec.min_samples)
        values = drop_top(chosen.values, node.ignore_top_p) if node.ignore_top_p else chosen.values
        try:
            with np.errstate(all="ignore"):
                result = spec.compute(chosen.steps, values, argument)
        except OverflowError:
            raise UnansweredError(f"{node.text} is too large to represent") from None
        if spec.name == "slope" and math.isnan(result):
            raise UnansweredError(
                f"not enough samples: all points of {points.label} are at step {chosen.steps[0]}"
            )
        if spec.name == "coverage":
            if not isinstance(node.range, Steps) and result < 2:
                raise UnansweredError(
                    "not enough samples: one logged step; say which are expected with steps(first, last)"
                )
            result /= num_expected(node.range, chosen.steps)
        return result

    def _is_member(self, node: Membership) -> bool:
        """Return whether a step was logged; the point there must be finite."""
        points = self.evidence.read(node.series)
        if isinstance(points, float):
            raise UnansweredError(
                f"{node.series.label} holds one number, {number_text(points)}, and no steps"
            )
        if not len(points):
            raise UnansweredError(f"no samples: {points.label} is empty")
        step = as_step(node.key)
        found = points.where(points.steps == (-1 if step is None else step))
        self.evidence.tally.add(self.evidence.guard(found, None) if len(found) else points)
        return bool(len(found))
