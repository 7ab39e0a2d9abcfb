"""Model of runs that pass or fail: an unknown failure rate on each side of the culprit, and broken commits.

Before the culprit a run fails with probability p, after it with probability q. The prior is uniform over all pairs
with `q - p >= smallest change`. (A prior that expects low noise on both sides takes a side without failures as a sign
that the other side always fails: answers at 0 / .5 were then right in 94 % of cases where 96 % was stated.) The cut
makes the two sides dependent, so the integral is a sum over a grid of pairs (K of them), exact up to the grid.
Under "no culprit" one rate r applies everywhere.

Without the cut, evidence for "no culprit" grows only with the logarithm of the number of runs; with it, linearly.

A commit may also be broken for its own reason (it does not build): then every run of it fails. That is one fact about
the commit, so f failures without a pass have the likelihood `(1 - b) p^f + b` instead of `p^f`: more repeats of them
give no more evidence than b.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from seatrial.bisect.history import BoolArray, FloatArray, IntArray
from seatrial.bisect.likelihood import Likelihoods, MetricPrior, Worse

_RATES = np.array(
    [0.005, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.995]
)
_MASS = np.diff(np.concatenate([[0.0], (_RATES[1:] + _RATES[:-1]) / 2, [1.0]]))
"""Prior probability of each rate: the width of its cell between 0 and 1."""
_STATED_POWER = 4
"""The stated probability weights pairs of rates by this power of their difference. The search itself gives small
differences, which are most likely to feign certainty, the same weight as large ones."""
BROKEN = 0.003
"""Probability b that a commit fails for its own reason, independent of the culprit."""


class _Grid(NamedTuple):
    before_K: IntArray
    """Index into the rates of p."""
    after_K: IntArray
    log_weight_K: FloatArray
    stated_K: FloatArray
    """Weight used for stated probabilities, divided by the weight used for the search."""


class Counted(NamedTuple):
    """The results at the commits that were run, [R]."""

    positions_R: IntArray
    fails_R: FloatArray
    passes_R: FloatArray
    may_be_broken_R: BoolArray
    """False at the ends: if BAD always fails, there is a culprit."""


def pass_fail_likelihoods(affected_PH: BoolArray, counted: Counted, smallest_change: float) -> Likelihoods:
    """Return the likelihoods of the counts; outcome 0 of a run is a pass, 1 a failure."""
    grid = _grid(smallest_change)
    affected_RH = affected_PH[counted.positions_R].astype(np.float64)
    log_ER, fails_next_ER = _by_rate(counted)
    before_EH, after_EH = log_ER @ (1 - affected_RH), log_ER @ affected_RH
    log_HK = (before_EH[grid.before_K] + after_EH[grid.after_K]).T + grid.log_weight_K
    top_H = log_HK.max(axis=1, keepdims=True)
    weight_HK = np.exp(log_HK - top_H)
    total_H, stated_H = weight_HK.sum(axis=1), weight_HK @ grid.stated_K

    log_E = log_ER.sum(axis=1) + np.log(_MASS)
    none_E = np.exp(log_E - log_E.max())
    log_none, none_E = float(log_E.max() + np.log(none_E.sum())), none_E / none_E.sum()

    def expected(rates_EX: FloatArray, index_K: IntArray) -> FloatArray:
        """Return rates under each hypothesis, and under "no culprit", [H+1, X]."""
        under_HX = weight_HK @ rates_EX[index_K] / total_H[:, None]
        return np.concatenate([under_HX, (none_E @ rates_EX)[None]])

    only_failed = np.flatnonzero(counted.may_be_broken_R & (counted.fails_R > 0) & (counted.passes_R == 0))
    next_EX, after_HX = fails_next_ER[:, only_failed], affected_RH[only_failed].T > 0
    after_H1X = np.concatenate([after_HX, np.zeros((1, len(only_failed)), dtype=np.bool_)])
    next_H1X = np.where(after_H1X, expected(next_EX, grid.after_K), expected(next_EX, grid.before_K))
    rates_E1 = _RATES[:, None]
    return Likelihoods(
        log_H1=np.append(top_H[:, 0] + np.log(total_H), log_none),
        log_stated_H1=np.append(top_H[:, 0] + np.log(stated_H), log_none),
        before_H1Q=_outcomes(expected(rates_E1, grid.before_K)[:, 0]),
        after_H1Q=_outcomes(expected(rates_E1, grid.after_K)[:, 0]),
        at={int(counted.positions_R[row]): _outcomes(next_H1X[:, x]) for x, row in enumerate(only_failed)},
    )


def _outcomes(fails_H1: FloatArray) -> FloatArray:
    return np.stack([1 - fails_H1, fails_H1], axis=1)


def _by_rate(counted: Counted) -> tuple[FloatArray, FloatArray]:
    """Return, per rate of the grid and commit [E, R], the log likelihood of its runs and the probability that the
    next one fails."""
    rates_E1 = _RATES[:, None]
    log_runs = counted.fails_R * np.log(rates_E1) + counted.passes_R * np.log1p(-rates_E1)
    broken_R = np.where(counted.may_be_broken_R & (counted.passes_R == 0), BROKEN, 0.0)
    runs = (1 - broken_R) * np.exp(log_runs)
    log_ER = np.where(broken_R > 0, np.log(runs + broken_R + 1e-300), log_runs)
    return log_ER, (runs * rates_E1 + broken_R) / (runs + broken_R + 1e-300)


@lru_cache(maxsize=8)
def _grid(smallest_change: float) -> _Grid:
    apart = _RATES[None, :] - _RATES[:, None] >= smallest_change - 1e-9
    weights = np.where(apart, np.outer(_MASS, _MASS), 0.0)
    before, after = np.nonzero(apart)
    weight_K = weights[apart] / weights.sum()
    stated_K = (_RATES[after] - _RATES[before]) ** _STATED_POWER
    return _Grid(before, after, np.log(weight_K), stated_K / (stated_K @ weight_K))


_SHIFTS = np.geomspace(1.2, 8.0, 18)
_CAUTIOUS, _STATED = (2.4, 0.2), (3.5, 0.4)
"""Centre of each prior of the shift, in sd, and its spread as a natural logarithm."""
_CAUTIOUS_SD_KNOWN = (2.0, 0.2)
"""The same if the standard deviation is given: the runs need not estimate it."""
_NUM_SDS, _NUM_SDS_BEFORE = 16, 40
"""Grid points of sd: more if earlier runs have narrowed it down."""
_NUM_BINS = 16
_DRIFT_SCALE = 1.5
"""A drift that matters changes more, from first to last, than the smallest shift of one commit."""


class _Sides(NamedTuple):
    """Sums over the runs for each class of hypotheses that the runs so far do not distinguish, [C]."""

    num_before_C: FloatArray
    num_after_C: FloatArray
    cross_C: FloatArray
    """Szy: sum of the values after the culprit, each less the mean."""
    spread_C: FloatArray
    """Szz: n_before n_after / n."""


def shift_likelihoods(
    affected_PH: BoolArray, positions: FloatArray, values: FloatArray, known: MetricPrior | None = None
) -> Likelihoods:
    """Return the likelihoods of the metric's values; the outcomes of a run are bins of its value.

    Args:
        affected_PH: which run contains which suspect.
        positions: position of each run, as integers, [N].
        values: finite value of each run, [N].
        known: what is known about the metric beforehand.
    """
    known = known or MetricPrior()
    num_hypotheses = affected_PH.shape[1]
    if len(values) < 2 or (float(np.ptp(values)) == 0.0 and known.sd is None and not known.healthy):
        flat = np.full((num_hypotheses + 1, 1), 1.0)
        return Likelihoods(log_H1=np.zeros(num_hypotheses + 1), before_H1Q=flat, after_H1Q=flat)
    num = len(values)
    mean, total = float(values.mean()), float(((values - values.mean()) ** 2).sum())
    free_before, total_before = _spread_before(known)
    sd_before = known.sd or np.sqrt(total_before / max(free_before, 1))
    overall = max(np.sqrt(total / (num - 1)), sd_before)
    after_NC, class_H = _distinct(affected_PH[positions.astype(np.int64)])
    num_after = after_NC.sum(axis=0)
    sides = _Sides(
        num - num_after, num_after, (values - mean) @ after_NC, num_after * (num - num_after) / num
    )

    sds = (
        np.array([known.sd])
        if known.sd
        else overall * np.geomspace(0.06, 2.0, _NUM_SDS_BEFORE if free_before else _NUM_SDS)
    )
    log_sds = -(num - 1 + free_before) * np.log(sds / overall) - (total + total_before) / (2 * sds**2)
    sizes = _sizes(known.worse)
    sd_K, shift_K = (grid.ravel() for grid in np.meshgrid(sds, sizes, indexing="ij"))
    cautious = _CAUTIOUS_SD_KNOWN if known.sd else _CAUTIOUS
    cautious_K, stated_K = (np.tile(_log_weights(sizes, *prior), len(sds)) for prior in (cautious, _STATED))
    log_K = np.repeat(log_sds, len(sizes)) + cautious_K

    def log_likelihoods(cross: FloatArray, spread: FloatArray, scale: float = 1.0) -> FloatArray:
        """Return the log likelihood per class of hypotheses (or drift) and grid pair, [C, K]."""
        size_K = scale * shift_K
        features = np.stack([cross, spread], axis=1)
        return np.asarray(features @ np.stack([size_K / sd_K, -0.5 * size_K**2]) + log_K)

    log_CK = log_likelihoods(sides.cross_C, sides.spread_C)
    top_C = log_CK.max(axis=1)
    weight_CK = np.exp(log_CK - top_C[:, None])
    stated_CK = weight_CK * np.exp(stated_K - cautious_K)
    total_C, total_stated_C = weight_CK.sum(axis=1), stated_CK.sum(axis=1)
    none_K = np.exp(log_sds - log_sds.max())
    log_none = float(log_sds.max() + np.log(none_K.sum()))

    ramp_ND = _ramps(affected_PH, positions)
    ramp_ND = ramp_ND - ramp_ND.mean(axis=0)
    log_DK = log_likelihoods((values - mean) @ ramp_ND, (ramp_ND**2).sum(axis=0), _DRIFT_SCALE)
    log_D = np.logaddexp.reduce(log_DK, axis=1)
    log_drift = float(np.logaddexp.reduce(log_D) - np.log(len(log_D)))

    bins = np.linspace(values.min() - 1.5 * overall, values.max() + 1.5 * overall, _NUM_BINS)
    before_CQ, after_CQ = _predicted(bins, mean, sides, stated_CK / total_stated_C[:, None], sd_K, shift_K)
    variance = float(none_K @ sds**2 / none_K.sum()) * (1 + 1 / num)
    none_1Q = _binned(bins, np.array([mean]), np.array([variance]))
    log_stated_H1 = np.append((top_C + np.log(total_stated_C))[class_H], log_none)
    return Likelihoods(
        log_H1=np.append((top_C + np.log(total_C))[class_H], log_none),
        log_stated_H1=log_stated_H1,
        log_expected_H1=log_stated_H1,
        before_H1Q=np.concatenate([before_CQ[class_H], none_1Q]),
        after_H1Q=np.concatenate([after_CQ[class_H], none_1Q]),
        log_drift=log_drift,
        drift_with_time=float(np.exp(log_D[1] - np.logaddexp.reduce(log_D))),
    )


def _distinct(after_NH: BoolArray) -> tuple[FloatArray, IntArray]:
    """Return the distinct columns [N, C] and the column of each hypothesis: equal columns have equal likelihoods."""
    packed = np.packbits(after_NH, axis=0)
    _, first, class_H = np.unique(packed, axis=1, return_index=True, return_inverse=True)
    return after_NH[:, first].astype(np.float64), class_H.ravel()


def _ramps(affected_PH: BoolArray, positions: FloatArray) -> FloatArray:
    """Return the size of a drift at each run, from 0 to 1: with the commits, and with time, [N, 2]."""
    share_P = affected_PH.mean(axis=1)
    with_commits = share_P[positions.astype(np.int64)]
    with_time = np.arange(len(positions)) / max(len(positions) - 1, 1)
    return np.stack([with_commits, with_time], axis=1)


def _predicted(
    bins_Q: FloatArray,
    mean: float,
    sides: _Sides,
    weight_CK: FloatArray,
    sd_K: FloatArray,
    shift_K: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the binned predictive distributions of the next value before and after the culprit.

    Mean and variance are those of the mixture over the grid, so uncertainty about sd and shift widens them.
    """
    num = float(sides.num_before_C[0] + sides.num_after_C[0])
    step_C, square_C = weight_CK @ (sd_K * shift_K), weight_CK @ (sd_K * shift_K) ** 2
    noise_C, spread_C = (weight_CK @ sd_K**2) * (1 + 1 / num), np.maximum(square_C - step_C**2, 0.0)
    before_C, after_C = sides.num_before_C / num, sides.num_after_C / num
    return (
        _binned(bins_Q, mean - step_C * after_C, noise_C + spread_C * after_C**2),
        _binned(bins_Q, mean + step_C * before_C, noise_C + spread_C * before_C**2),
    )


def _binned(bins_Q: FloatArray, mean_C: FloatArray, variance_C: FloatArray) -> FloatArray:
    density = np.exp(-0.5 * (bins_Q - mean_C[:, None]) ** 2 / variance_C[:, None]) + 1e-12
    return np.asarray(density / density.sum(axis=1, keepdims=True), dtype=np.float64)


def _spread_before(known: MetricPrior) -> tuple[int, float]:
    """Return the degrees of freedom and the sum of squared deviations of the earlier runs."""
    if known.sd or not known.healthy:
        return 0, 0.0
    healthy = np.array(known.healthy, dtype=np.float64)
    return len(healthy) - 1, float(((healthy - healthy.mean()) ** 2).sum())


def _sizes(worse: Worse | None) -> FloatArray:
    """Return the shifts that are possible, in sd."""
    if worse is None:
        return np.append(_SHIFTS, -_SHIFTS)
    return _SHIFTS if worse is Worse.HIGHER else np.asarray(-_SHIFTS)


def _log_weights(sizes_K: FloatArray, centre: float, spread: float) -> FloatArray:
    """Return the log prior weights of shifts."""
    log_weights = -0.5 * (np.log(np.abs(sizes_K) / centre) / spread) ** 2
    return np.asarray(log_weights - np.logaddexp.reduce(log_weights), dtype=np.float64)
