"""Tests that compare new runs with repeated ones. Shapes: N repeats of the baseline, M new runs, S steps.

All are exact for normal noise between runs, for any correlation between the steps of a run:
- a summary (one number per run): the two-sample t statistic with only the baseline's spread (N - 1 degrees of freedom;
  for M = 1 this is the prediction interval), so that one outlier among the new runs cannot widen its own bound;
- a trajectory's drift: the standardised sum of all steps (J. Laeuter, Biometrics 52, 1996), with weights from the sums
  of squares over all N + M runs, for which the t distribution with N + M - 2 degrees of freedom is exact;
- a trajectory's worst step: the largest prediction t over runs and steps, with a Bonferroni correction for both.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Critical = Callable[[int, int], float]
"""(repeats, new runs) -> the critical value of |t| of a summary."""

_NUM_SPREADS = 4001
_WIDTH_OF_CHI = 10.0
"""Integration range in standard deviations of the spread's own distribution."""
MAX_REPEATS = 1000
"""No larger number of repeats is suggested."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """How far new runs are from a baseline, and how far they may be."""

    t: float
    """The t statistic; its sign is the direction. Infinite if an exact value differs."""
    critical: float
    """The comparison passes if |t| is at most this; 0 for an exact comparison."""
    in_sd: float
    """The deviation in standard deviations of a single baseline run."""
    step: int | None = None
    """Index of the step that deviates most."""
    run: int | None = None
    """Index of the new run that deviates most."""

    @property
    def holds(self) -> bool:
        """Whether noise explains the new runs; False for NaN."""
        return abs(self.t) <= self.critical


class Needed(NamedTuple):
    """Numbers of runs that reach the wanted power; None if none up to `MAX_REPEATS` does."""

    new_runs: int | None
    """New runs, with the baseline's number of repeats."""
    repeats: int | None
    """Repeats of the baseline, with the given number of new runs."""
    of_both: int | None
    """The same number of both."""


def is_exact(values: Array) -> bool:
    """Return whether the repeats [N] show no noise: every value equals the first."""
    return bool((values == values[0]).all())


def summary_deviation(baseline_N: Array, new_M: Array, alpha: float) -> Deviation:
    """Compare one number per run at a two-sided false-alarm rate alpha."""
    if is_exact(baseline_N):
        return _exact(new_M - baseline_N[0])
    num_baseline, num_new = len(baseline_N), len(new_M)
    spread = float(baseline_N.std(ddof=1))
    in_sd = float(new_M.mean() - baseline_N.mean()) / spread
    return Deviation(
        t=in_sd / math.sqrt(1 / num_baseline + 1 / num_new),
        critical=critical_t(alpha, num_baseline - 1),
        in_sd=in_sd,
    )


def drift_deviation(baseline_NS: Array, new_MS: Array, alpha: float) -> Deviation:
    """Compare the signed sum of all standardised steps at a two-sided false-alarm rate alpha."""
    num_baseline, num_new = len(baseline_NS), len(new_MS)
    both = np.vstack([baseline_NS, new_MS])
    centred = both - both.mean(axis=0)
    moving = ~(both == both[0]).all(axis=0)
    squares = (centred[:, moving] ** 2).sum(axis=0)
    scores = (centred[:, moving] / np.sqrt(squares)).sum(axis=1)
    first, second = scores[:num_baseline], scores[num_baseline:]
    within = ((first - first.mean()) ** 2).sum() + ((second - second.mean()) ** 2).sum()
    degrees = num_baseline + num_new - 2
    spread = math.sqrt(within / degrees)
    difference = float(second.mean() - first.mean())
    in_sd = difference / spread if spread > 0 else math.copysign(math.inf, difference) if difference else 0.0
    return Deviation(
        t=in_sd / math.sqrt(1 / num_baseline + 1 / num_new),
        critical=critical_t(alpha, degrees),
        in_sd=in_sd,
    )


def worst_deviation(baseline_NS: Array, new_MS: Array, alpha: float) -> Deviation:
    """Compare every step of every new run at a family-wise two-sided false-alarm rate alpha.

    Steps at which all repeats agree to the bit are compared exactly.
    """
    num_baseline = len(baseline_NS)
    exact_S = (baseline_NS == baseline_NS[0]).all(axis=0)
    difference_MS = new_MS - np.where(exact_S, baseline_NS[0], baseline_NS.mean(axis=0))
    wrong = np.argwhere(exact_S & (difference_MS != 0))
    if len(wrong):
        run, step = (int(index) for index in wrong[0])
        sign = math.copysign(math.inf, difference_MS[run, step])
        return Deviation(t=sign, critical=0.0, in_sd=sign, step=step, run=run)
    spread_S = np.where(exact_S, 1.0, baseline_NS.std(axis=0, ddof=1))
    in_sd_MS = difference_MS / spread_S
    run, step = (int(index) for index in np.unravel_index(np.abs(in_sd_MS).argmax(), in_sd_MS.shape))
    num_tests = max(1, int((~exact_S).sum()) * len(new_MS))
    in_sd = float(in_sd_MS[run, step])
    return Deviation(
        t=in_sd / math.sqrt(1 + 1 / num_baseline),
        critical=critical_t(alpha / num_tests, num_baseline - 1),
        in_sd=in_sd,
        step=step,
        run=run,
    )


def allowed_difference(baseline_N: Array, num_new: int, alpha: float) -> float:
    """Return how far the mean of new runs may be from the baseline's mean, in units of the metric."""
    if is_exact(baseline_N):
        return 0.0
    scale = math.sqrt(1 / len(baseline_N) + 1 / num_new)
    return float(baseline_N.std(ddof=1)) * scale * critical_t(alpha, len(baseline_N) - 1)


@cache
def power_of(num_baseline: int, num_new: int, shift_in_sd: float, alpha: float) -> float:
    """Return the probability that `summary_deviation` detects a shift."""
    if num_baseline < 2 or num_new < 1:
        return 0.0
    return power_at(num_baseline, num_new, shift_in_sd, critical_t(alpha, num_baseline - 1))


@cache
def power_at(num_baseline: int, num_new: int, shift_in_sd: float, critical: float) -> float:
    """Return the probability that |t| of a summary exceeds a critical value, for normal noise and a shift.

    This averages the normal tail over the estimated spread, which has a chi distribution. scipy's noncentral t
    gives NaN for some of its tails.
    """
    from scipy.special import ndtr

    degrees = num_baseline - 1
    shift = shift_in_sd / math.sqrt(1 / num_baseline + 1 / num_new)
    width = _WIDTH_OF_CHI / math.sqrt(2 * degrees)
    spread = np.linspace(max(0.0, 1 - width), 1 + width, _NUM_SPREADS)
    density = _stats().chi.pdf(spread, degrees, scale=1 / math.sqrt(degrees))
    exceeds = ndtr(shift - critical * spread) + ndtr(-shift - critical * spread)
    return float(np.trapezoid(density * exceeds, spread) / np.trapezoid(density, spread))


def needed_repeats(
    num_baseline: int,
    num_new: int,
    shift_in_sd: float,
    alpha: float,
    power: float,
    critical: Critical | None = None,
) -> Needed:
    """Return how many runs reach a power: new ones, repeats of the baseline, or the same number of both.

    Args:
        num_baseline: repeats of the baseline, for the number of new runs.
        num_new: new runs, for the number of repeats.
        shift_in_sd: the shift to detect.
        alpha: two-sided false-alarm rate of one test.
        power: the wanted probability to detect it.
        critical: the critical values of the test; those of the t distribution by default.
    """

    def enough(baseline: int, new: int) -> bool:
        if critical is None:
            return power_of(baseline, new, shift_in_sd, alpha) >= power
        return power_at(baseline, new, shift_in_sd, critical(baseline, new)) >= power

    return Needed(
        new_runs=_smallest(lambda number: enough(num_baseline, number), num_new),
        repeats=_smallest(lambda number: enough(number, num_new), num_baseline),
        of_both=_smallest(lambda number: enough(number, number), 2),
    )


def describe_too_few(
    num_baseline: int,
    num_new: int,
    shift_in_sd: float,
    power: float,
    *,
    each: float,
    alpha: float,
    num_tests: int,
    critical: Critical | None = None,
) -> str:
    """Return that so many runs would probably miss a shift, and how many would detect it.

    Args:
        num_baseline: repeats of the baseline.
        num_new: new runs.
        shift_in_sd: the shift to detect.
        power: the wanted probability to detect it.
        each: two-sided false-alarm rate of one test.
        alpha: false-alarm rate of all tests together.
        num_tests: number of tests that share it.
        critical: the critical values of the test; those of the t distribution by default.
    """
    needed = needed_repeats(num_baseline, num_new, shift_in_sd, each, power, critical)
    limit = critical_t(each, num_baseline - 1) if critical is None else critical(num_baseline, num_new)
    found = power_at(num_baseline, num_new, shift_in_sd, limit)
    return (
        f"{num_new} new against {num_baseline} repeats find a shift of {shift_in_sd:g} sd with power {found:.0%} "
        f"only (wanted {power:.0%} at {alpha:.2g} false alarms over {num_tests} tests); enough are "
        f"{describe_needed(needed, num_baseline, num_new)}"
    )


def describe_needed(needed: Needed, num_baseline: int, num_new: int) -> str:
    """Return how many runs are enough: `12 new runs with these 8 repeats, or 9 of both`."""
    ways = [
        words
        for number, words in (
            (needed.new_runs, f"{needed.new_runs} new runs with these {num_baseline} repeats"),
            (needed.repeats, f"{needed.repeats} repeats with {num_new} new"),
            (needed.of_both, f"{needed.of_both} of both"),
        )
        if number is not None
    ]
    return ", or ".join(ways) or f"no number of runs up to {MAX_REPEATS}"


def _smallest(enough: Callable[[int], bool], low: int) -> int | None:
    """Return the smallest number from `low` on for which a monotone condition is true."""
    if not enough(MAX_REPEATS):
        return None
    return low + bisect.bisect_left(range(low, MAX_REPEATS), True, key=enough)


def _exact(differences: Array) -> Deviation:
    run = int(np.abs(differences).argmax())
    off = math.copysign(math.inf, differences[run]) if differences[run] else 0.0
    return Deviation(t=off, critical=0.0, in_sd=off, run=run)


@cache
def critical_t(alpha: float, degrees: int) -> float:
    """Return the two-sided critical value of the t distribution."""
    return float(_stats().t.isf(alpha / 2, degrees))


def _stats() -> Any:
    # scipy.stats takes half a second to import, so only comparisons import it.
    from scipy import stats

    return stats
