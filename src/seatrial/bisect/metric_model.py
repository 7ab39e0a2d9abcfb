"""Model of runs that leave a value: noise with outliers, a scale for each side of the culprit, and a shift there.

A value is `location + scale * noise`. The noise is normal or has the heavy tails of Student's t; after the culprit
the location moves by some number of scales, and the scale may halve or double. Nothing of this is known, and all of it
is summed over a grid, because Student's t has no closed form: the likelihood of each side is tabulated over locations
and scales, and the prior of the shift joins both sides as a matrix over pairs of locations.

Shapes: N runs, C classes of hypotheses that the runs so far do not distinguish, V tails of the noise, S scales before
the culprit, E scales of either side, M locations, Q bins of the next value. Locations and scales are in
units of the spread of all values, so the grid is the same for all searches.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from seatrial.bisect.history import BoolArray, FloatArray, IntArray
from seatrial.bisect.likelihood import Likelihoods, MetricPrior, Worse

_CAUTIOUS, _STATED = (2.4, 0.2), (3.5, 0.4)
"""Centre of each prior of the shift, in scales, and its spread as a natural logarithm."""
_CAUTIOUS_SD_KNOWN = (2.0, 0.2)
"""The same if the standard deviation is given: the runs need not estimate it."""
_OF_STATED = 0.1
"""Share of the stated prior in the cautious one: otherwise a large shift looks like outliers."""
_FREEDOM_V = (math.inf, 3.0)
"""Degrees of freedom of the noise: normal, and with outliers."""
_WEIGHT_V = np.array([0.8, 0.2])
_RATIO_WEIGHTS = (0.1, 0.8, 0.1)
"""Prior probability that the scale halves, stays or doubles at the culprit."""
_STEPS_TO_DOUBLE = 2
_SCALES_E = 2.0 ** (np.arange(-7 - _STEPS_TO_DOUBLE, 3 + _STEPS_TO_DOUBLE) / _STEPS_TO_DOUBLE)
_REACH, _NUM_LOCATIONS = 4.0, 49
_LOCATIONS_M = np.linspace(-_REACH, _REACH, _NUM_LOCATIONS)
_BINS_Q = np.linspace(-3.2, 3.2, 16)
_DRIFT = (3.6, 0.2)
"""Prior of a drift, from first to last: it changes more than the smallest shift of one commit."""
_DRIFT_NODES = np.array([-1.2, 0.0, 1.2])
_EVERY_SCALE, _EVERY_LOCATION, _DRIFT_REACH = 1, 2, 1.4
"""A drift is summed over a coarser grid. Its location in the middle is at most one unit from the mean of the values."""


class _Grid(NamedTuple):
    """The scales, and what can be computed before any run."""

    scales_E: FloatArray
    step: int
    """Scales between one and its double."""
    cautious_SMM: FloatArray
    """Prior probability of the location after the culprit, given that before it."""
    stated_SMM: FloatArray
    next_VEMQ: FloatArray
    """Probability of each bin of a value."""


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
    healthy = np.array(() if known.sd else known.healthy, dtype=np.float64)
    sd_before = known.sd or (float(healthy.std(ddof=1)) if len(healthy) > 1 else 0.0)
    unit = max(float(values.std(ddof=1)), sd_before)
    grid = _grid(known.sd / unit if known.sd else None, known.worse)
    sides = slice(grid.step, len(grid.scales_E) - grid.step)
    scaled = (values - values.mean()) / unit

    log_prior_VS = np.log(_WEIGHT_V)[:, None] + _of_healthy(healthy / unit, grid.scales_E[sides])
    log_VEMN = _log_density(((scaled - _LOCATIONS_M[:, None]) ** 2)[None], grid.scales_E)
    after_NC, class_H = _distinct(affected_PH[positions.astype(np.int64)])
    log_after_VEMC = log_VEMN @ after_NC
    log_whole_VSM = log_VEMN[:, sides].sum(axis=-1) + log_prior_VS[..., None]
    log_before_VSMC = log_whole_VSM[..., None] - log_after_VEMC[:, sides]
    log_none = float(_log_sum(log_whole_VSM))

    before_VSMC, top_before_C = _without_scale(log_before_VSMC)
    after_VEMC, top_after_C = _without_scale(log_after_VEMC)
    mixed_VSMC = _over_ratios(after_VEMC, grid.step)
    stated_VSMC = before_VSMC * (grid.stated_SMM @ mixed_VSMC)
    cautious_C = _log(before_VSMC * (grid.cautious_SMM @ mixed_VSMC)) + top_before_C + top_after_C
    stated_C = _log(stated_VSMC) + top_before_C + top_after_C

    stated_after_VEMC = after_VEMC * _to_ratios(grid.stated_SMM.transpose(0, 2, 1) @ before_VSMC, grid.step)
    before_CQ = _predicted(stated_VSMC, grid.next_VEMQ[:, sides])
    after_CQ = _predicted(stated_after_VEMC, grid.next_VEMQ)
    none_1Q = _predicted(_without_scale(log_whole_VSM[..., None])[0], grid.next_VEMQ[:, sides])

    ramp_ND = _ramps(affected_PH, positions)
    log_D = _log_drifts(scaled, ramp_ND, grid.scales_E[sides], log_prior_VS, known.worse)
    log_stated_H1 = np.append(stated_C[class_H], log_none)
    return Likelihoods(
        log_H1=np.append(cautious_C[class_H], log_none),
        log_stated_H1=log_stated_H1,
        log_expected_H1=log_stated_H1,
        before_H1Q=np.concatenate([before_CQ[class_H], none_1Q]),
        after_H1Q=np.concatenate([after_CQ[class_H], none_1Q]),
        log_drift=float(np.logaddexp.reduce(log_D) - np.log(len(log_D))),
        drift_with_time=float(np.exp(log_D[1] - np.logaddexp.reduce(log_D))),
    )


def _without_scale(log_VXMC: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the exponentials over their largest of each class, and the logarithm of that [C]."""
    top_C = log_VXMC.max(axis=(0, 1, 2))
    return np.exp(log_VXMC - top_C), top_C


def _log(weight_VSMC: FloatArray) -> FloatArray:
    """Return the log of the sum of each class; a class that is beyond the range of numbers gets the least."""
    return np.asarray(np.log(np.maximum(weight_VSMC.sum(axis=(0, 1, 2)), 1e-300)), dtype=np.float64)


def _over_ratios(after_VEMC: FloatArray, step: int) -> FloatArray:
    """Return the likelihood after the culprit by the scale before it: the ratio of both is summed out, [V, S, M, C]."""
    num_scales = after_VEMC.shape[1] - 2 * step
    mixed_VSMC = np.zeros_like(after_VEMC[:, :num_scales])
    for number, weight in enumerate(_RATIO_WEIGHTS):
        mixed_VSMC += weight * after_VEMC[:, number * step : number * step + num_scales]
    return mixed_VSMC


def _to_ratios(before_VSMC: FloatArray, step: int) -> FloatArray:
    """Return weights by the scale before the culprit as weights by that after it, [V, E, M, C]."""
    num_tails, num_scales, *others = before_VSMC.shape
    weight_VEMC = np.zeros((num_tails, num_scales + 2 * step, *others))
    for number, weight in enumerate(_RATIO_WEIGHTS):
        weight_VEMC[:, number * step : number * step + num_scales] += weight * before_VSMC
    return weight_VEMC


def _log_density(squares: FloatArray, scales_E: FloatArray) -> FloatArray:
    """Return the log density of values by their squared distance from the location, [V, E, ...].

    Args:
        squares: the same at each scale, [1, ...], or one for each, [E, ...].
        scales_E: scale of the noise.
    """
    scales = scales_E.reshape(-1, *[1] * (squares.ndim - 1))
    standard, log_scales = squares / scales**2, np.log(scales)
    rows = []
    for freedom in _FREEDOM_V:
        if math.isinf(freedom):
            rows.append(-0.5 * standard - (log_scales + 0.5 * math.log(2 * math.pi)))
        else:
            log_gammas = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
            log_constant = log_gammas - 0.5 * math.log(freedom * math.pi)
            rows.append(-(freedom + 1) / 2 * np.log1p(standard / freedom) + (log_constant - log_scales))
    return np.stack(rows)


def _log_sum(log_values: FloatArray, axis: tuple[int, ...] | None = None) -> FloatArray:
    """Return the log of the sum of exponentials."""
    top = log_values.max(axis=axis, keepdims=True)
    total = np.log(np.exp(log_values - top).sum(axis=axis, keepdims=True)) + top
    return np.asarray(total.squeeze(axis), dtype=np.float64)


def _of_healthy(healthy: FloatArray, scales_S: FloatArray) -> FloatArray:
    """Return the log likelihood of earlier runs at each scale, [V, S]; their level may be another machine's."""
    if len(healthy) < 2:
        return np.zeros((len(_FREEDOM_V), len(scales_S)))
    squares_MN = (healthy - healthy.mean() - _LOCATIONS_M[:, None]) ** 2
    return _log_sum(_log_density(squares_MN[None], scales_S).sum(axis=-1), axis=(-1,))


def _log_drifts(
    scaled: FloatArray,
    ramp_ND: FloatArray,
    scales_S: FloatArray,
    log_prior_VS: FloatArray,
    worse: Worse | None,
) -> FloatArray:
    """Return the log likelihood of a drift with the commits and of one with time, [2]."""
    signs = {None: (1.0, -1.0), Worse.HIGHER: (1.0,), Worse.LOWER: (-1.0,)}[worse]
    size = _DRIFT[0] * np.exp(_DRIFT[1] * _DRIFT_NODES)
    size_B = np.concatenate([sign * size for sign in signs])
    weight_B = np.tile(np.exp(-0.5 * _DRIFT_NODES**2), len(signs))
    log_weight_B = np.log(weight_B / weight_B.sum())
    every = _EVERY_SCALE if len(scales_S) > 1 else 1
    scales, log_prior = scales_S[::every], log_prior_VS[:, ::every] + math.log(every * _EVERY_LOCATION)
    locations = _LOCATIONS_M[np.abs(_LOCATIONS_M) <= _DRIFT_REACH][::_EVERY_LOCATION]
    centred_DN = (ramp_ND - ramp_ND.mean(axis=0)).T
    drift_SDBN = (scales[:, None] * size_B)[:, None, :, None] * centred_DN[None, :, None, :]
    left = scaled - drift_SDBN[:, :, :, None, :] - locations[:, None]
    log_VSDBM = _log_density(left**2, scales).sum(axis=-1)
    log_VSDBM += log_prior[:, :, None, None, None] + log_weight_B[:, None]
    return _log_sum(log_VSDBM, axis=(0, 1, 3, 4))


@lru_cache(maxsize=8)
def _grid(sd: float | None, worse: Worse | None) -> _Grid:
    scales_E = _SCALES_E if sd is None else sd * np.array([0.5, 1.0, 2.0])
    step = _STEPS_TO_DOUBLE if sd is None else 1
    cautious = _CAUTIOUS if sd is None else _CAUTIOUS_SD_KNOWN
    moved_MM = _LOCATIONS_M - _LOCATIONS_M[:, None]
    if worse is Worse.LOWER:
        moved_MM = -moved_MM
    shifts_SMM = moved_MM / scales_E[step:-step, None, None]
    if worse is None:
        shifts_SMM = np.abs(shifts_SMM)
    cell_S = (_LOCATIONS_M[1] - _LOCATIONS_M[0]) / scales_E[step:-step] / (2 if worse is None else 1)

    def prior(centre: float, spread: float) -> FloatArray:
        size = np.maximum(shifts_SMM, 1e-9)
        density = np.exp(-0.5 * (np.log(size / centre) / spread) ** 2) / (
            spread * size * math.sqrt(2 * math.pi)
        )
        return np.asarray(np.where(shifts_SMM > 0, density, 0.0) * cell_S[:, None, None], dtype=np.float64)

    stated = prior(*_STATED)

    next_VEMQ = np.exp(_log_density(((_BINS_Q - _LOCATIONS_M[:, None]) ** 2)[None], scales_E)) + 1e-12
    next_VEMQ /= next_VEMQ.sum(axis=-1, keepdims=True)
    return _Grid(scales_E, step, (1 - _OF_STATED) * prior(*cautious) + _OF_STATED * stated, stated, next_VEMQ)


def _predicted(weight_VEMX: FloatArray, next_VEMQ: FloatArray) -> FloatArray:
    """Return the distribution of the next value over the bins, [X, Q]."""
    flat = weight_VEMX.reshape(-1, weight_VEMX.shape[-1])
    return np.asarray(
        (flat / flat.sum(axis=0)).T @ next_VEMQ.reshape(-1, next_VEMQ.shape[-1]), dtype=np.float64
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
