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
from seatrial.bisect.likelihood import Likelihoods

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
