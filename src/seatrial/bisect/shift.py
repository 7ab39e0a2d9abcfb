"""Model of runs that leave a number: a normal metric whose mean shifts at the culprit.

Before the culprit a run's metric is N(mu, sd), after it N(mu + d sd, sd). mu has a flat prior (integrated in closed
form), sd the prior 1/sd, and the shift d, in units of sd, a prior on both signs. sd and d are summed over a grid of K
pairs, which keeps the heavy tails that few repeats imply. With z = 1 after the culprit and n runs,
`log L = -(n-1) log sd - (SST - 2 d sd Szy + d^2 sd^2 Szz) / (2 sd^2)`; SST does not depend on the hypothesis.

There are two priors of the shift, and hence two likelihoods. The search continues until the *cautious* one is sure: it
expects shifts around 2.4 sd, where a few runs feign certainty most easily. The stated probability uses a prior that
also allows larger shifts: for a shift of 5 sd the cautious prior leaves more doubt than the results do. The stated
prior also chooses the next run, because it predicts the results.

A drift is modelled by a z that rises from 0 to 1: with the commits (many small changes), or with the time of the run
(the machine changes, so both ends change).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from seatrial.bisect.history import BoolArray, FloatArray, IntArray
from seatrial.bisect.likelihood import Likelihoods
from seatrial.bisect.settings import MetricPrior, Worse

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

    sds = np.array([known.sd]) if known.sd else overall * _relative_sds(free_before)
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


def _relative_sds(free_before: int) -> FloatArray:
    return np.asarray(np.geomspace(0.06, 2.0, _NUM_SDS_BEFORE if free_before else _NUM_SDS))


def _sizes(worse: Worse | None) -> FloatArray:
    """Return the shifts that are possible, in sd."""
    if worse is None:
        return np.append(_SHIFTS, -_SHIFTS)
    return _SHIFTS if worse is Worse.HIGHER else np.asarray(-_SHIFTS)


def _log_weights(sizes_K: FloatArray, centre: float, spread: float) -> FloatArray:
    """Return the log prior weights of shifts."""
    log_weights = -0.5 * (np.log(np.abs(sizes_K) / centre) / spread) ** 2
    return np.asarray(log_weights - np.logaddexp.reduce(log_weights), dtype=np.float64)
