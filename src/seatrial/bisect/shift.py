"""Runs that leave a number: a normal metric whose mean shifts at the culprit.

Before the culprit a run's metric is N(mu, sd), after it N(mu + d sd, sd). Nothing is known of mu (flat, integrated
in closed form); sd has the prior 1/sd and the shift d, in units of sd, a prior on both signs around 2.5 (a shift
below one sd needs another metric, not more runs; one above five sd is as good as five). Both are summed over a
grid of K pairs, which keeps the tails as heavy as few repeats demand. With z = 1 after the culprit and n runs,
`log L = -(n-1) log sd - (SST - 2 d sd Szy + d^2 sd^2 Szz) / (2 sd^2)`; SST does not depend on the hypothesis.

A drift is the same with a z that rises from 0 to 1: with the commits (many small changes), or with the time of the
run (the machine changes, so that both ends do).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from seatrial.bisect.history import BoolArray, FloatArray
from seatrial.bisect.likelihood import Likelihoods

_SHIFT_CENTRE, _SHIFT_SPREAD, _NUM_SHIFTS = 2.4, 0.2, 8
_NUM_SDS = 16
_NUM_BINS = 16
_DRIFT_SCALE = 1.5
"""A drift that matters changes more, from first to last, than the least shift of one commit."""


class _Sides(NamedTuple):
    """Sums over the runs under each hypothesis; `rest` is the value's mean over all runs."""

    num_before_H: FloatArray
    num_after_H: FloatArray
    cross_H: FloatArray
    """Szy: sum of the values after the culprit, each less the mean."""
    spread_H: FloatArray
    """Szz: n_before n_after / n."""


def shift_likelihoods(
    affected_PH: BoolArray, positions: FloatArray, values: FloatArray, known_sd: float | None = None
) -> Likelihoods:
    """Return the likelihoods of the metric's values; outcomes of a run are bins of its value.

    Args:
        affected_PH: who is affected.
        positions: where each run was, as integers, [N].
        values: the finite value that each run left, [N].
        known_sd: standard deviation of repeated runs, when earlier repeats have shown it.
    """
    num_hypotheses = affected_PH.shape[1]
    if len(values) < 2 or (float(np.ptp(values)) == 0.0 and known_sd is None):
        flat = np.full((num_hypotheses + 1, 1), 1.0)
        return Likelihoods(log_H1=np.zeros(num_hypotheses + 1), before_H1Q=flat, after_H1Q=flat)
    num = len(values)
    mean, total = float(values.mean()), float(((values - values.mean()) ** 2).sum())
    overall = max(np.sqrt(total / (num - 1)), known_sd or 0.0)
    after_NH = affected_PH[positions.astype(np.int64)].astype(np.float64)
    num_after = after_NH.sum(axis=0)
    sides = _Sides(
        num - num_after, num_after, (values - mean) @ after_NH, num_after * (num - num_after) / num
    )

    sds = overall * np.geomspace(0.06, 2.0, _NUM_SDS) if known_sd is None else np.array([known_sd])
    log_sds = -(num - 1) * np.log(sds / overall) - total / (2 * sds**2)
    shifts, log_shifts = _shifts()
    sd_K, shift_K = (grid.ravel() for grid in np.meshgrid(sds, shifts, indexing="ij"))
    log_K = (log_sds[:, None] + log_shifts[None, :]).ravel()

    def log_likelihoods(cross: FloatArray, spread: FloatArray, scale: float = 1.0) -> FloatArray:
        """Return the log likelihood of each hypothesis and pair of the grid, [H, K]."""
        size_K = scale * shift_K
        features = np.stack([cross, spread], axis=1)
        return np.asarray(features @ np.stack([size_K / sd_K, -0.5 * size_K**2]) + log_K)

    log_HK = log_likelihoods(sides.cross_H, sides.spread_H)
    top_H = log_HK.max(axis=1, keepdims=True)
    weight_HK = np.exp(log_HK - top_H)
    total_H = weight_HK.sum(axis=1)
    none_K = np.exp(log_sds - log_sds.max())
    log_none = float(log_sds.max() + np.log(none_K.sum()))

    ramp_ND = _ramps(affected_PH, positions)
    ramp_ND = ramp_ND - ramp_ND.mean(axis=0)
    log_DK = log_likelihoods((values - mean) @ ramp_ND, (ramp_ND**2).sum(axis=0), _DRIFT_SCALE)
    log_D = np.logaddexp.reduce(log_DK, axis=1)
    log_drift = float(np.logaddexp.reduce(log_D) - np.log(len(log_D)))

    sd_H1 = np.append(weight_HK @ sd_K / total_H, none_K @ sds / none_K.sum())
    step_H = weight_HK @ (sd_K * shift_K) / total_H
    before, after = _predicted(values, mean, overall, sides, step_H, sd_H1)
    return Likelihoods(
        log_H1=np.append(top_H[:, 0] + np.log(total_H), log_none),
        before_H1Q=before,
        after_H1Q=after,
        log_drift=log_drift,
        drift_with_time=float(np.exp(log_D[1] - np.logaddexp.reduce(log_D))),
    )


def _ramps(affected_PH: BoolArray, positions: FloatArray) -> FloatArray:
    """Return what a drift makes of each run, from 0 to 1: with the commits, and with time, [N, 2]."""
    share_P = affected_PH.mean(axis=1)
    with_commits = share_P[positions.astype(np.int64)]
    with_time = np.arange(len(positions)) / max(len(positions) - 1, 1)
    return np.stack([with_commits, with_time], axis=1)


def _predicted(
    values: FloatArray, mean: float, overall: float, sides: _Sides, step_H: FloatArray, sd_H1: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the binned predictive distributions of the next value before and after the culprit."""
    num = len(values)
    bins = np.linspace(values.min() - 1.5 * overall, values.max() + 1.5 * overall, _NUM_BINS)
    mean_before = np.append(mean - step_H * sides.num_after_H / num, mean)
    mean_after = np.append(mean + step_H * sides.num_before_H / num, mean)
    known_before = np.maximum(np.append(sides.num_before_H, num), 1)
    known_after = np.maximum(np.append(sides.num_after_H, num), 1)
    return (
        _binned(bins, mean_before, sd_H1 * np.sqrt(1 + 1 / known_before)),
        _binned(bins, mean_after, sd_H1 * np.sqrt(1 + 1 / known_after)),
    )


def _binned(bins_Q: FloatArray, mean_H: FloatArray, sd_H: FloatArray) -> FloatArray:
    density = np.exp(-0.5 * ((bins_Q - mean_H[:, None]) / sd_H[:, None]) ** 2) + 1e-12
    return np.asarray(density / density.sum(axis=1, keepdims=True), dtype=np.float64)


@lru_cache(maxsize=1)
def _shifts() -> tuple[FloatArray, FloatArray]:
    """Return the grid of shifts in units of sd, both signs, and their log prior weights."""
    quantiles = np.linspace(-1.8, 1.8, _NUM_SHIFTS)
    sizes, weights = _SHIFT_CENTRE * np.exp(_SHIFT_SPREAD * quantiles), np.exp(-0.5 * quantiles**2)
    both = np.concatenate([weights, weights])
    return np.concatenate([sizes, -sizes]), np.log(both / both.sum())
