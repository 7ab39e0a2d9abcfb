"""Runs that pass or fail: Beta-Bernoulli sides with a smallest difference between them.

Before the culprit a run fails with probability p, after it with probability q. Both have Beta priors (flakiness
is usually low: most mass on small p and large q, a part of it flat), cut to `q - p >= smallest change`. The cut
makes the two sides dependent, so the integral is a sum over a grid of pairs (K of them), exact up to the grid.
Under "no culprit" one rate r holds everywhere.

Without the cut, evidence for "no culprit" grows only with the logarithm of the runs; with it, linearly.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from seatrial.bisect.history import BoolArray, FloatArray
from seatrial.bisect.likelihood import Likelihoods

_RATES = np.array(
    [0.005, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.995]
)
_LOW_NOISE, _ANY_NOISE = (1.2, 7.0), (1.0, 1.6)
"""Beta parameters of the failure rate before the culprit; after it they are mirrored."""
_ANY_NOISE_SHARE = 0.3


class _Grid(NamedTuple):
    before_K: FloatArray
    after_K: FloatArray
    log_weight_K: FloatArray


def pass_fail_likelihoods(
    affected_PH: BoolArray, fails_P: FloatArray, passes_P: FloatArray, smallest_change: float
) -> Likelihoods:
    """Return the likelihoods of the counted passes and fails; outcome 0 of a run is a pass, 1 a fail."""
    grid = _grid(smallest_change)
    affected = affected_PH.astype(np.float64)
    fails_after, passes_after = fails_P @ affected, passes_P @ affected
    counts = np.stack(
        [fails_P.sum() - fails_after, passes_P.sum() - passes_after, fails_after, passes_after], axis=1
    )
    logs = np.stack(
        [np.log(grid.before_K), np.log1p(-grid.before_K), np.log(grid.after_K), np.log1p(-grid.after_K)]
    )
    log_HK = counts @ logs + grid.log_weight_K
    top_H = log_HK.max(axis=1, keepdims=True)
    weight_HK = np.exp(log_HK - top_H)
    total_H = weight_HK.sum(axis=1)
    log_none, rate_none = _one_rate(float(fails_P.sum()), float(passes_P.sum()))
    before = np.append(weight_HK @ grid.before_K / total_H, rate_none)
    after = np.append(weight_HK @ grid.after_K / total_H, rate_none)
    return Likelihoods(
        log_H1=np.append(top_H[:, 0] + np.log(total_H), log_none),
        before_H1Q=np.stack([1 - before, before], axis=1),
        after_H1Q=np.stack([1 - after, after], axis=1),
    )


def _one_rate(fails: float, passes: float) -> tuple[float, float]:
    """Return the log marginal likelihood and the expected rate when one rate, any alike likely, holds everywhere."""
    weights = _beta_weights(1.0, 1.0)
    log_K = fails * np.log(_RATES) + passes * np.log1p(-_RATES) + np.log(weights)
    top = log_K.max()
    weight_K = np.exp(log_K - top)
    return float(top + np.log(weight_K.sum())), float(weight_K @ _RATES / weight_K.sum())


@lru_cache(maxsize=8)
def _grid(smallest_change: float) -> _Grid:
    weights = np.zeros((len(_RATES), len(_RATES)))
    apart = _RATES[None, :] - _RATES[:, None] >= smallest_change - 1e-9
    for share, (a, b) in ((1 - _ANY_NOISE_SHARE, _LOW_NOISE), (_ANY_NOISE_SHARE, _ANY_NOISE)):
        part = np.where(apart, np.outer(_beta_weights(a, b), _beta_weights(b, a)), 0.0)
        weights += share * part / part.sum()
    before, after = np.meshgrid(_RATES, _RATES, indexing="ij")
    return _Grid(before[apart], after[apart], np.log(np.maximum(weights[apart], 1e-300)))


def _beta_weights(a: float, b: float) -> FloatArray:
    """Return the mass of Beta(a, b) around each rate of the grid (trapezoids on a fine mesh)."""
    mesh = (np.arange(20000) + 0.5) / 20000
    density = mesh ** (a - 1) * (1 - mesh) ** (b - 1)
    edges = np.concatenate([[0.0], (_RATES[1:] + _RATES[:-1]) / 2, [1.0]])
    mass, _ = np.histogram(mesh, bins=edges, weights=density)
    return np.asarray(mass / mass.sum(), dtype=np.float64)
