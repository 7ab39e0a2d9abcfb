"""Variances of many series that each rest on a few runs, steadied by what all of them show together.

With four runs a variance has three degrees of freedom, and the quantiles of Student's t are so wide that nothing is
ever found. Where many variances are estimated side by side they can be taken for draws of one distribution, the scaled
inverse chi-square, whose two figures their own scatter tells; each is then drawn towards it, and has more degrees of
freedom (G. K. Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004, sections 3 and 6.2).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

MAX_DEGREES = 4.0
"""Degrees of freedom that a prior is trusted with: series of one run are not independent, and not normal."""
_LEAST = 1e-3
"""Variances below this share of what independent steps would give count as this: log 0 tells nothing."""
_BISECTIONS = 60


class VariancePrior(NamedTuple):
    """What many variances have in common."""

    variance: float
    degrees: float

    def moderated(self, variance: float, degrees: int) -> float:
        """Return a variance that rests on `degrees` degrees of freedom, drawn towards this one."""
        return (self.degrees * self.variance + degrees * variance) / (self.degrees + degrees)


def variance_prior(variances_N: Array, degrees: int, most: float = MAX_DEGREES) -> VariancePrior:
    """Return the prior of variances that rest on `degrees` degrees of freedom each, by the moments of their logarithms.

    Args:
        variances_N: at least one, in a common unit.
        degrees: of each.
        most: degrees of freedom that the prior may have.
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
    """Return the two-sided critical value of Student's t, for degrees of freedom that need not be whole."""
    from scipy.special import stdtrit

    return -float(stdtrit(degrees, false_alarms / 2))
