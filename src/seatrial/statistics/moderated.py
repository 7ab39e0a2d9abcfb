"""Moderated variances: variances of many series that each rest on a few runs, stabilised by all of them together.

With four runs a variance has three degrees of freedom, and the quantiles of Student's t are so wide that a test finds
nothing. Many variances estimated together can be treated as draws from one distribution, the scaled inverse chi-square,
whose two parameters follow from their scatter. Each is then shrunk towards it, and has more degrees of freedom
(G. K. Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004, sections 3 and 6.2).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

MAX_DEGREES = 4.0
"""Most degrees of freedom of a prior: series of one run are neither independent nor normal."""
_LEAST = 1e-3
"""Smallest variance, relative to that of independent steps: log 0 carries no information."""
_BISECTIONS = 60


class VariancePrior(NamedTuple):
    """The common distribution of many variances."""

    variance: float
    degrees: float

    def moderated(self, variance: float, degrees: int) -> float:
        """Return a variance with `degrees` degrees of freedom, shrunk towards this one."""
        return (self.degrees * self.variance + degrees * variance) / (self.degrees + degrees)


def variance_prior(variances_N: Array, degrees: int, most: float = MAX_DEGREES) -> VariancePrior:
    """Return the prior of variances with `degrees` degrees of freedom each, from the moments of their logarithms.

    Args:
        variances_N: at least one, in a common unit.
        degrees: of each.
        most: most degrees of freedom of the prior.
    """
    from scipy.special import digamma, polygamma

    logs = np.log(np.maximum(variances_N, _LEAST)) - digamma(degrees / 2) + math.log(degrees / 2)
    scatter = float(logs.var(ddof=1) - polygamma(1, degrees / 2)) if len(logs) > 1 else 1.0
    prior = most
    if scatter > polygamma(1, most / 2):
        low, high = 1e-3, most
        for _ in range(_BISECTIONS):
            prior = math.sqrt(low * high)
            low, high = (prior, high) if polygamma(1, prior / 2) > scatter else (low, prior)
    return VariancePrior(
        variance=float(np.exp(logs.mean() + digamma(prior / 2) - math.log(prior / 2))), degrees=prior
    )


def limit_of_t(false_alarms: float, degrees: float) -> float:
    """Return the two-sided critical value of Student's t; the degrees of freedom need not be an integer."""
    from scipy.special import stdtrit

    return -float(stdtrit(degrees, false_alarms / 2))
