"""How far runs may differ if the noise is not normal: critical values that also cover heavier tails.

A handful of repeats cannot distinguish normal from heavy-tailed noise, and the quantiles of the t distribution alarm
too often for the latter. Two remedies:
- one number per run (`heavy_critical`): the critical value at which the prediction statistic of `summary_deviation`
  alarms at the stated rate under Student's t with 3 degrees of freedom and under lognormal noise with sigma 0.5,
  the larger of the two. The rate averages the exact tail beyond the bounds of simulated baselines.
- the worst of many steps (`worst_factor`): how many times the largest deviation of a repeat from the others that of a
  new run may be. For independent maxima with a tail of index 3 (P(W > w) ~ w**-3, as for Student's t with 3 degrees of
  freedom at every step) P(max of M > K max of N) is at most M / (M + N K**3), at any scale.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

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
