"""The tests that hold new runs to repeated ones. Shapes: N repeats of the baseline, M new runs, S steps.

All are exact for normal noise between runs, whatever the correlation between the steps of a run:
- a summary (one number per run) by the two-sample t statistic with the baseline's spread alone (N - 1 degrees of
  freedom: for M = 1 this is the prediction interval), so that one wild new run cannot widen its own bound;
- a trajectory's drift by the standardised sum of all steps (J. Laeuter, Biometrics 52, 1996): weights come from the
  sums of squares over all N + M runs, for which the t distribution with N + M - 2 degrees of freedom is exact;
- a trajectory's worst step by the largest prediction t over runs and steps, Bonferroni over both.
"""

from __future__ import annotations

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
"""Standard deviations of the spread's own distribution that are integrated over."""
MAX_REPEATS_TOLD = 1000
"""Beyond this no number of repeats is suggested."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """How far new runs are from a baseline, and how far they may be."""

    t: float
    """The t statistic; signed, so a deviation has a direction. Infinite where an exact value differs."""
    critical: float
    """It holds when |t| is at most this; 0 for an exact comparison."""
    in_sd: float
    """The deviation in standard deviations of a single baseline run."""
    step: int | None = None
    """Index of the step that deviates most."""
    run: int | None = None
    """Index of the new run that deviates most."""

    @property
    def holds(self) -> bool:
        """Whether the new runs are within what the noise explains; NaN never is."""
        return abs(self.t) <= self.critical


class Needed(NamedTuple):
    """Repeats that reach the wanted power; None where no number up to `MAX_REPEATS_TOLD` does."""

    new_runs: int | None
    """New runs, at the baseline's number of repeats."""
    repeats: int | None
    """Repeats of the baseline, at the given number of new runs."""
    of_both: int | None
    """The same number of both."""


def is_exact(values: Array) -> bool:
    """Whether repeats show no noise at all: every value equals the first. Shape [N]."""
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
    """Return the probability that `summary_deviation` finds a shift."""
    if num_baseline < 2 or num_new < 1:
        return 0.0
    return power_at(num_baseline, num_new, shift_in_sd, critical_t(alpha, num_baseline - 1))


@cache
def power_at(num_baseline: int, num_new: int, shift_in_sd: float, critical: float) -> float:
    """Return the probability that |t| of a summary exceeds a critical value, for normal noise and a shift.

    The normal tail averaged over the estimated spread, whose distribution is that of chi. scipy's noncentral t gives
    NaN for some of its tails.
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
        num_baseline: repeats of the baseline; as many new runs as are asked for are added to these.
        num_new: new runs; as many repeats as are asked for are held against these.
        shift_in_sd: the shift that is to be found.
        alpha: two-sided false-alarm rate of one test.
        power: the wanted probability to find it.
        critical: the critical values that are judged by; those of the t distribution where none are given.
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


def too_few_in_words(
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
    """Say that so many runs would probably miss a shift, and how many would find it.

    Args:
        num_baseline: repeats of the baseline.
        num_new: new runs.
        shift_in_sd: the shift that is to be found.
        power: the wanted probability to find it.
        each: two-sided false-alarm rate of one test.
        alpha: false-alarm rate of all tests together.
        num_tests: how many tests share it.
        critical: the critical values that are judged by; those of the t distribution where none are given.
    """
    needed = needed_repeats(num_baseline, num_new, shift_in_sd, each, power, critical)
    if critical is None:
        found = power_of(num_baseline, num_new, shift_in_sd, each)
    else:
        found = power_at(num_baseline, num_new, shift_in_sd, critical(num_baseline, num_new))
    return (
        f"{num_new} new against {num_baseline} repeats find a shift of {shift_in_sd:g} sd with power {found:.0%} "
        f"only (wanted {power:.0%} at {alpha:.2g} false alarms over {num_tests} tests); enough are "
        f"{needed_in_words(needed, num_baseline, num_new)}"
    )


def needed_in_words(needed: Needed, num_baseline: int, num_new: int) -> str:
    """Say how many runs are enough: `12 new runs with these 8 repeats, or 9 of both`."""
    ways = [
        words
        for number, words in (
            (needed.new_runs, f"{needed.new_runs} new runs with these {num_baseline} repeats"),
            (needed.repeats, f"{needed.repeats} repeats with {num_new} new"),
            (needed.of_both, f"{needed.of_both} of both"),
        )
        if number is not None
    ]
    return ", or ".join(ways) or f"no number of runs up to {MAX_REPEATS_TOLD}"


def _smallest(enough: Any, low: int) -> int | None:
    """Return the smallest number from `low` on for which a monotone condition holds."""
    if not enough(MAX_REPEATS_TOLD):
        return None
    high = MAX_REPEATS_TOLD
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return high


def _exact(differences: Array) -> Deviation:
    run = int(np.abs(differences).argmax())
    off = math.copysign(math.inf, differences[run]) if differences[run] else 0.0
    return Deviation(t=off, critical=0.0, in_sd=off, run=run)


@cache
def critical_t(alpha: float, degrees: int) -> float:
    """Return the two-sided critical value of the t distribution."""
    return float(_stats().t.isf(alpha / 2, degrees))


def _stats() -> Any:
    # scipy.stats takes half a second to import; only comparisons pay for it.
    from scipy import stats

    return stats
