"""What the search assumes and when it stops.

The figures were tuned in simulation, on seeds that the table of benchmarks/bisect_simulation.py does not use.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Noise(enum.StrEnum):
    """What is assumed of the command."""

    AUTO = "auto"
    """It may be flaky until its own evidence proves otherwise (two runs that agree to the last bit)."""
    NONE = "none"
    """Declared deterministic: plain bisection, one run a commit."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a search."""

    noise: Noise = Noise.AUTO
    credibility: float = 0.95
    """Probability at which an answer is given."""
    prior_no_culprit: float = 0.2
    """Probability, before any run, that GOOD and BAD do not differ (in one CI survey 40 % of ranges)."""
    largest_no_culprit: float = 0.01
    """No commit is named for its failures while "no culprit" is likelier than this. The probability of a false
    alarm over the whole search is then, averaged over failure rates, at most `x (1 - prior) / ((1 - x) prior)` = 4 %
    (Ville's inequality); in simulation it is 0 to 3 %."""
    largest_no_culprit_metric: float = 0.02
    """The same for a metric, where the bound (8 %) holds at every mean and standard deviation; in simulation it is
    2 to 3 %."""
    prior_drift: float = 0.01
    """Probability, before any run, that a metric drifts."""
    metric_sd: float | None = None
    """Standard deviation of the metric over repeated runs, when it is known; None learns it from the search."""
    smallest_rate_change: float = 0.35
    """Smallest change of the failure rate that counts as a culprit."""
    max_runs: int = 400
    """Runs after which the search gives up, both ends included."""
