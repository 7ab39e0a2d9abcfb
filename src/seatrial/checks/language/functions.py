"""The functions of the check language: one table, which the grammar, the evaluator and the docs read.

Every `compute` gets points that the guards let through: at least `min_samples`, finite, ordered by step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt

Steps = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class FunctionSpec:
    """One aggregate: how it is called and what it gives."""

    name: str
    compute: Callable[[Steps, Values, float], float]
    """From steps (N,), values (N,) and the argument (0.0 where there is none) to one number."""
    meaning: str
    argument: Literal["threshold", "q"] | None = None
    """Name of the second argument."""
    positional_range: bool = False
    """Accepts NeMo RL's `start, end` as well as an explicit range."""
    min_samples: int = 1
    whole_series: bool = False
    """Takes no range."""


def _slope(steps: Steps, values: Values, _: float) -> float:
    """Return the least-squares slope per step; NaN when all points share one step."""
    centred = steps - steps.mean()
    spread = float(centred @ centred)
    return float(centred @ (values - values.mean())) / spread if spread > 0 else math.nan


def distinct(steps: Steps) -> Steps:
    """Return each of some ascending steps once. (`np.unique` would sort or hash ten million of them again.)"""
    return np.asarray(steps[np.append(True, np.diff(steps) != 0)[: len(steps)]])


def _num_distinct(steps: Steps, _values: Values, _: float) -> float:
    return float(distinct(steps).size)


FUNCTIONS: dict[str, FunctionSpec] = {
    spec.name: spec
    for spec in (
        FunctionSpec(name="min", compute=lambda _, v, __: float(v.min()), meaning="smallest value"),
        FunctionSpec(name="max", compute=lambda _, v, __: float(v.max()), meaning="largest value"),
        FunctionSpec(
            name="mean",
            compute=lambda _, v, __: math.fsum(v) / len(v),
            meaning="arithmetic mean; `ignore_top_p=P` leaves out the largest share P of the values",
            positional_range=True,
        ),
        FunctionSpec(
            name="median",
            compute=lambda _, v, __: float(np.median(v)),
            meaning="median (mean of the middle two for an even count)",
            positional_range=True,
        ),
        FunctionSpec(
            name="std",
            compute=lambda _, v, __: float(v.std(ddof=1)),
            meaning="sample standard deviation (divisor N - 1)",
            min_samples=2,
        ),
        FunctionSpec(
            name="quantile",
            compute=lambda _, v, q: float(np.quantile(v, q)),
            meaning="q-quantile with linear interpolation, 0 <= q <= 1",
            argument="q",
        ),
        FunctionSpec(
            name="ratio_above",
            compute=lambda _, v, threshold: float(np.count_nonzero(v >= threshold)) / len(v),
            meaning="share of values that are at or above the threshold",
            argument="threshold",
        ),
        FunctionSpec(
            name="slope", compute=_slope, meaning="least-squares slope, in units per step", min_samples=2
        ),
        FunctionSpec(name="sum", compute=lambda _, v, __: math.fsum(v), meaning="sum"),
        FunctionSpec(
            name="first", compute=lambda _, v, __: float(v[0]), meaning="value at the first logged step"
        ),
        FunctionSpec(
            name="last", compute=lambda _, v, __: float(v[-1]), meaning="value at the last logged step"
        ),
        FunctionSpec(name="count", compute=lambda _, v, __: float(len(v)), meaning="number of points"),
        FunctionSpec(name="len", compute=_num_distinct, meaning="number of logged steps", whole_series=True),
        FunctionSpec(
            name="coverage",
            compute=_num_distinct,  # The evaluator divides by the number of expected steps, which the range says.
            meaning="share of the expected steps that are logged: those of `steps(a, b)`, "
            "else from the first to the last at the smallest distance between two",
        ),
    )
}
"""Every aggregate by name; `abs` and the ranges `steps`, `last`, `after` are syntax of their own."""


def drop_top(values: Values, share: float) -> Values:
    """Remove the largest values, by the share `ignore_top_p`; at least one is kept.

    The count is exact in decimal: 0.07 of 100 values are 7. (NeMo RL drops 8: 100 * (1 - 0.07) is 92.999... in
    binary.) A fraction of a value counts as a whole one, as in theirs.
    """
    dropped = math.ceil(len(values) * Fraction(repr(share)))
    return np.sort(values)[: max(1, len(values) - dropped)]
