"""The largest of many errors: NaN is worse than any number, and stays the worst.

`max(1.0, nan)` is 1.0, and after `worst = nan` the test `not error <= worst` takes any number for worse: both would
lose the NaN that a relation is there to find.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


def is_worse(error: float, worst: float) -> bool:
    """Tell whether an error is worse than the worst so far."""
    return not error <= worst and not math.isnan(worst)


def largest(errors: Iterable[float]) -> float:
    """Return the largest error, NaN if one is; 0 for none."""
    worst = 0.0
    for error in errors:
        if is_worse(error, worst):
            worst = error
    return worst
