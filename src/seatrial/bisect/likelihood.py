"""The search's settings, the likelihoods that every model of run results computes, and the information of a run.

Shapes: H hypotheses, P positions, Q possible outcomes of one run. Row H (the last of H+1) is the hypothesis
"no culprit: flaky", under which all commits behave alike. The settings were tuned in simulation, on seeds that the
table of benchmarks/bisect_simulation.py does not use.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from seatrial.bisect.history import FloatArray


class Noise(enum.StrEnum):
    """What is assumed about the command's noise."""

    AUTO = "auto"
    """It may be flaky until its own evidence shows otherwise (two runs that agree to the last bit)."""
    NONE = "none"
    """Declared deterministic: plain bisection, one run a commit."""


class Worse(enum.StrEnum):
    """Which values of a metric are worse."""

    HIGHER = "higher"
    LOWER = "lower"


EITHER = "either"
"""Value of --worse for a culprit that may have moved the metric in either direction."""


@dataclass(frozen=True, kw_only=True)
class MetricPrior:
    """What is known about a metric before the first run."""

    sd: float | None = None
    """Its standard deviation over repeated runs; None: the search estimates it."""
    healthy: tuple[float, ...] = ()
    """Values of earlier healthy runs. Only their spread counts, not their level: they may come from another machine."""
    worse: Worse | None = None
    """The direction in which the culprit moved it; None: either."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a search."""

    noise: Noise = Noise.AUTO
    credibility: float = 0.95
    """Probability at which the search answers."""
    prior_no_culprit: float = 0.2
    """Probability, before any run, that GOOD and BAD do not differ (in one CI survey 40 % of ranges)."""
    largest_no_culprit: float = 0.01
    """No commit is named for its failures while "no culprit" is more probable than this. The probability of a false
    alarm over the whole search is then, averaged over failure rates, at most `x (1 - prior) / ((1 - x) prior)` = 4 %
    (Ville's inequality); in simulation it is 0 to 3 %."""
    largest_no_culprit_metric: float = 0.02
    """The same for a metric, where the bound is 8 %; in simulation it is 1 to 3 %. Larger values save runs and name
    more innocent commits: docs/evidence/bisect.md shows the curve."""
    prior_drift: float = 0.1
    """Probability, before any run, that a metric drifts."""
    largest_drift: float = 0.002
    """No commit is named while a drift is more probable than this: of searches in a drift, averaged over its size, at
    most 1.8 % blame a commit (the same inequality)."""
    least_runs_to_clear: int = 14
    """Fewest runs before a noisy metric is declared unchanged: early in a drift, BAD looks no worse than GOOD. Of
    searches in a drift of 6 sd in 20 runs with a known worse direction, 22 % ended with "no culprit" without this
    minimum, and 5 % with a minimum of 12."""
    metric: MetricPrior = MetricPrior()
    smallest_rate_change: float = 0.35
    """Smallest change of the failure rate that counts as a culprit."""
    max_runs: int = 400
    """Runs after which the search stops, both ends included."""


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
