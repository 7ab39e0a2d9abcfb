"""The search's assumptions and stopping rules.

They were tuned in simulation, on seeds that the table of benchmarks/bisect_simulation.py does not use.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


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
    largest_no_culprit_metric: float = 0.015
    """The same for a metric, where the bound (6 %) holds at every mean and standard deviation; in simulation it is 3 %.
    Larger values save runs and name more innocent commits: docs/evidence/bisect.md shows the curve."""
    prior_drift: float = 0.008
    """Probability, before any run, that a metric drifts."""
    least_runs_to_clear: int = 14
    """Fewest runs before a noisy metric is declared unchanged: early in a drift, BAD looks no worse than GOOD. Of
    searches in a drift of 6 sd in 20 runs with a known worse direction, 22 % ended with "no culprit" without this
    minimum, and 5 % with a minimum of 12."""
    metric: MetricPrior = MetricPrior()
    smallest_rate_change: float = 0.35
    """Smallest change of the failure rate that counts as a culprit."""
    max_runs: int = 400
    """Runs after which the search stops, both ends included."""
