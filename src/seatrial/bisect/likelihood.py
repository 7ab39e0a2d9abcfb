"""The likelihoods that every model of run results computes, and how much information a run is expected to give.

Shapes: H hypotheses, P positions, Q possible outcomes of one run. Row H (the last of H+1) is the hypothesis
"no culprit: flaky", under which all commits behave alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from seatrial.bisect.history import FloatArray


@dataclass(frozen=True, kw_only=True)
class Likelihoods:
    """Marginal likelihood of the results under each hypothesis, and its prediction of one more run."""

    log_H1: FloatArray
    """Natural logarithm, up to one constant; the last entry is "no culprit"."""
    before_H1Q: FloatArray
    """Probability of each outcome of a run that does not contain the culprit."""
    after_H1Q: FloatArray
    """The same for a run that contains it."""
    at: Mapping[int, FloatArray] = field(default_factory=dict)
    """Predictions [H+1, Q] at positions whose own runs are informative, because the commit may be broken."""
    log_stated_H1: FloatArray | None = None
    """`log_H1` under the prior that the answer's probability uses; None if it is the same."""
    log_expected_H1: FloatArray | None = None
    """`log_H1` under the prior that predicts the next outcome; None if it is the same."""
    log_drift: float = -math.inf
    """The same for a drift: the results change gradually, with the commits or with time."""
    drift_with_time: float = 0.0
    """Probability that a drift follows time and not the commits."""

    def stated(self) -> Likelihoods:
        """Return the likelihoods under the prior that the answer's probability uses."""
        return self if self.log_stated_H1 is None else replace(self, log_H1=self.log_stated_H1)

    def expected(self) -> Likelihoods:
        """Return the likelihoods under the prior that chooses the next run."""
        return self if self.log_expected_H1 is None else replace(self, log_H1=self.log_expected_H1)


def posterior(likelihoods: Likelihoods, prior_H1: FloatArray) -> FloatArray:
    """Return the probability of each hypothesis; the last is "no culprit"."""
    with np.errstate(divide="ignore"):
        log_weights = likelihoods.log_H1 + np.log(prior_H1)
    weights = np.exp(log_weights - log_weights.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def drift_probability(likelihoods: Likelihoods, prior_H1: FloatArray, prior_drift: float) -> float:
    """Return the probability of a drift; `posterior` divides the rest among the other hypotheses."""
    if not math.isfinite(likelihoods.log_drift):
        return 0.0
    with np.errstate(divide="ignore"):
        log_others = float(
            np.logaddexp.reduce(likelihoods.log_H1 + np.log(prior_H1)) + math.log1p(-prior_drift)
        )
    return 1 / (1 + math.exp(min(log_others - likelihoods.log_drift - math.log(prior_drift), 700.0)))


def expected_information(
    affected_PH: npt.NDArray[np.float32], weights_H1: FloatArray, likelihoods: Likelihoods
) -> FloatArray:
    """Return, for one run at each position, the expected loss of entropy over the hypotheses in nats.

    This is the mutual information of the run's outcome and the hypothesis:
    `sum_q [ sum_h w_h f_hq log f_hq - m_q log m_q ]` with the mixture `m_q = sum_h w_h f_hq`. Both sums over
    hypotheses are one matrix product with `affected_PH`, so the cost is O(P H Q).
    """
    weights = weights_H1[:, None]
    before, after = likelihoods.before_H1Q, likelihoods.after_H1Q
    base, change = weights * before, (weights * (after - before))[:-1]
    log_base = weights * _xlogx(before)
    log_change = (weights * (_xlogx(after) - _xlogx(before)))[:-1]
    num_outcomes = before.shape[1]
    sums = affected_PH @ np.concatenate([change, log_change], axis=1).astype(np.float32)
    mixture = np.maximum(base.sum(axis=0) + sums[:, :num_outcomes], 0.0)
    expected = log_base.sum(axis=0) + sums[:, num_outcomes:]
    information_P = np.asarray((expected - _xlogx(mixture)).sum(axis=1), dtype=np.float64)
    for position, outcomes_H1Q in likelihoods.at.items():
        mixed = (weights * outcomes_H1Q).sum(axis=0)
        information_P[position] = float(((weights * _xlogx(outcomes_H1Q)).sum(axis=0) - _xlogx(mixed)).sum())
    return information_P


def _xlogx(values: FloatArray) -> FloatArray:
    """Return `x log x`, and 0 at 0."""
    return np.asarray(values * np.log(np.maximum(values, 1e-300)), dtype=np.float64)
