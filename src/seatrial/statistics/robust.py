"""The tests of a baseline with critical values that also cover non-normal noise.

A handful of repeats cannot distinguish normal from heavy-tailed noise, and the quantiles of the t distribution alarm
too often for the latter. Shapes: N repeats of the baseline, M new runs, S steps. Each is a test of
`seatrial.statistics.baselines`, exact for normal noise, with a wider bound where heavier tails would cause more false
alarms than stated:
- one number per run, one or two new runs (`heavy_critical`): the critical value at which the prediction statistic of
  `summary_deviation` alarms at the stated rate under Student's t with 3 degrees of freedom and under lognormal noise
  with sigma 0.5, the larger of the two. The rate averages the exact tail beyond the bounds of simulated baselines;
- one number per run, two or more new runs: the mean must also exceed the spread of all N + M runs, which a single
  outlier widens; the outlier is tested alone;
- the worst step (`worst_factor`): how many times the largest deviation of a repeat from the others that of a new run
  may be. For independent maxima with a tail of index 3 (P(W > w) ~ w**-3, as for Student's t with 3 degrees of freedom
  at every step) P(max of M > K max of N) is at most M / (M + N K**3), at any scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from seatrial.statistics.baselines import (
    Array,
    Deviation,
    critical_t,
    drift_deviation,
    is_exact,
    power_at,
    summary_deviation,
    worst_deviation,
)

TAIL_INDEX = 3
"""The heaviest tail that the stated false-alarm rates cover."""
LOGNORMAL_SIGMA = 0.5
"""Of the logarithm of a run's number; normal noise is the limit of small values."""
_NUM_BASELINES = 20_000
_MAX_RUNS = 48
"""More repeats count as this many: the critical value hardly decreases further."""
_LARGEST = 1e6


@cache
def heavy_critical(num_baseline: int, num_new: int, alpha: float) -> float:
    """Return the critical value of |t| of `summary_deviation` under the heavier kinds of noise."""
    repeats = min(num_baseline, _MAX_RUNS)
    return max(_critical(kind, repeats, num_new, alpha) for kind in ("t", "lognormal"))


def worst_factor(num_baseline: int, num_new: int, alpha: float) -> float:
    """Return how many times the repeats' largest deviation the new runs' largest deviation may be."""
    return max(1.0, float((num_new * (1 / alpha - 1) / num_baseline) ** (1 / TAIL_INDEX)))


def _critical(kind: str, num_baseline: int, num_new: int, alpha: float) -> float:
    """Find the critical value by bisection; all new runs but one are drawn, the tail of the last one is exact."""
    random = np.random.default_rng([num_baseline, num_new])
    shape = (_NUM_BASELINES, num_baseline + num_new - 1)
    drawn = (
        random.standard_t(TAIL_INDEX, shape) if kind == "t" else random.lognormal(0, LOGNORMAL_SIGMA, shape)
    )
    old, others = drawn[:, :num_baseline], drawn[:, num_baseline:].sum(axis=1)
    centre = old.mean(axis=1)
    spread = old.std(axis=1, ddof=1) * math.sqrt(1 / num_baseline + 1 / num_new)
    low, high = 1.0, _LARGEST  # bisection in the logarithm
    while high / low > 1.001:
        middle: float = math.sqrt(low * high)
        above = num_new * (centre + middle * spread) - others
        below = num_new * (centre - middle * spread) - others
        if float((_upper_tail(kind, above) + _lower_tail(kind, below)).mean()) > alpha:
            low = middle
        else:
            high = middle
    return high


def _upper_tail(kind: str, values: Any) -> Any:
    from scipy import special

    return special.stdtr(TAIL_INDEX, -values) if kind == "t" else special.ndtr(-_standard_log(values))


def _lower_tail(kind: str, values: Any) -> Any:
    from scipy import special

    return special.stdtr(TAIL_INDEX, values) if kind == "t" else special.ndtr(_standard_log(values))


def _standard_log(values: Any) -> Any:
    """Return log(values) / sigma; minus infinity for values that are not positive."""
    positive = values > 0
    return np.where(positive, np.log(np.where(positive, values, 1.0)) / LOGNORMAL_SIGMA, -np.inf)


_SHARE_OF_NUMBERS = 0.7
"""Share of a metric's false alarms under heavy tails: a shift of a whole run moves all its numbers together."""
_SHARE_OF_WORST = 0.7
"""Share of a test's false alarms for the worst step under heavy tails: lognormal steps also alarm in the means."""
_LEAST_SPREAD = 0.1
"""The spread of the other repeats at a step counts as at least this fraction of the spread of all repeats."""
_LARGEST_SHIFT = 1e4


@dataclass(frozen=True, kw_only=True)
class Rates:
    """False-alarm rates, two-sided."""

    test: float
    """Of each test of a metric under normal noise."""
    metric: float
    """Of all tests of a metric together."""

    def mean_critical(self, num_baseline: int, num_new: int) -> float:
        """Return the critical value of |t| of the mean of new runs."""
        normal = critical_t(self.test, num_baseline - 1)
        if num_new > 2:
            return normal
        share = _SHARE_OF_NUMBERS if num_new == 1 else 0.5
        return max(normal, heavy_critical(num_baseline, num_new, share * self.metric))

    def single_critical(self, num_baseline: int, num_new: int) -> float:
        """Return the critical value of |t| of each of several new runs alone."""
        return max(
            critical_t(self.test / num_new, num_baseline - 1),
            heavy_critical(num_baseline, 1, 0.5 * self.metric / num_new),
        )


def check_summary(baseline_N: Array, new_M: Array, rates: Rates) -> Deviation:
    """Compare one number per run; `run` names a single new run that deviates."""
    deviation = summary_deviation(baseline_N, new_M, rates.test)
    if is_exact(baseline_N):
        return deviation
    num_baseline, num_new = len(baseline_N), len(new_M)
    critical = rates.mean_critical(num_baseline, num_new)
    if num_new == 1:
        return replace(deviation, critical=critical)
    spread = float(baseline_N.std(ddof=1))
    degrees = num_baseline + num_new - 2
    within = float(((baseline_N - baseline_N.mean()) ** 2).sum() + ((new_M - new_M.mean()) ** 2).sum())
    pooled = math.sqrt(within / degrees)
    mean = replace(deviation, critical=max(critical, critical_t(rates.test, degrees) * pooled / spread))
    in_sd_M = (new_M - baseline_N.mean()) / spread
    run = int(np.abs(in_sd_M).argmax())
    scale = math.sqrt(1 + 1 / num_baseline)
    single = Deviation(
        t=float(in_sd_M[run]) / scale,
        critical=rates.single_critical(num_baseline, num_new),
        in_sd=float(in_sd_M[run]),
        run=run,
    )
    return mean if single.holds or not mean.holds else single


def check_drift(baseline_NS: Array, new_MS: Array, rates: Rates) -> Deviation:
    """Compare the signed sum of all standardised steps."""
    deviation = drift_deviation(baseline_NS, new_MS, rates.test)
    if len(new_MS) > 1:
        return deviation
    return replace(deviation, critical=max(deviation.critical, rates.mean_critical(len(baseline_NS), 1)))


def check_worst(baseline_NS: Array, new_MS: Array, rates: Rates) -> Deviation:
    """Compare every step of every new run."""
    deviation = worst_deviation(baseline_NS, new_MS, rates.test)
    if deviation.critical == 0 or len(baseline_NS) < 3 or is_exact_everywhere(baseline_NS):
        return deviation
    factor = worst_factor(len(baseline_NS), len(new_MS), _SHARE_OF_WORST * rates.test)
    return replace(deviation, critical=max(deviation.critical, factor * worst_of_repeats(baseline_NS)))


def is_exact_everywhere(baseline_NS: Array) -> bool:
    """Return whether the repeats agree to the bit at every step."""
    return bool((baseline_NS == baseline_NS[0]).all())


def worst_of_repeats(baseline_NS: Array) -> float:
    """Return the largest |t| of a step of one repeat against the other repeats.

    Needs at least three repeats that differ in at least one step.
    """
    number = len(baseline_NS)
    moving = ~(baseline_NS == baseline_NS[0]).all(axis=0)
    values = baseline_NS[:, moving]
    from_mean = values - values.mean(axis=0)
    squares = (from_mean**2).sum(axis=0)
    # Without one repeat: its distance to the mean of the others, and their sum of squares about that mean.
    distance = from_mean * number / (number - 1)
    others = np.maximum(squares - from_mean**2 * number / (number - 1), _LEAST_SPREAD**2 * squares)
    spread = np.sqrt(others / (number - 2) * (1 + 1 / (number - 1)))
    return float((np.abs(distance) / spread).max())


def visible_shift(num_baseline: int, num_new: int, rates: Rates, power: float) -> float:
    """Return the smallest shift of a mean, in standard deviations between runs, that is detected with a power.

    For normal noise. Infinite above ten thousand.
    """
    critical = rates.mean_critical(num_baseline, num_new)
    low, high = 0.0, 1.0
    while power_at(num_baseline, num_new, high, critical) < power:
        low, high = high, 2 * high
        if high > _LARGEST_SHIFT:
            return math.inf
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if power_at(num_baseline, num_new, middle, critical) < power:
            low = middle
        else:
            high = middle
    return high
