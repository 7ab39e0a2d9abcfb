"""The largest of many errors: NaN is worse than any number, and stays the worst.

`max(1.0, nan)` is 1.0, and after `worst = nan` the test `not error <= worst` takes any number for worse: both would
lose the NaN that a relation is meant to find.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


def is_worse(error: float, worst: float) -> bool:
    """Return whether an error is worse than the worst so far."""
    return not error <= worst and not math.isnan(worst)


def largest(errors: Iterable[float]) -> float:
    """Return the largest error, NaN if one is; 0 for none."""
    worst = 0.0
    for error in errors:
        if is_worse(error, worst):
            worst = error
    return worst


def relative_error(found: float, right: float, floor: float = 1.0) -> float:
    """Return the difference from the right value, relative to it; relative to `floor` if it is smaller than that."""
    return abs(found - right) / max(abs(right), floor)


class Worst:
    """The largest error so far and the place where it was found."""

    def __init__(self, error: float = 0.0, place: str = "nowhere") -> None:
        self.error, self.place = error, place

    def add(self, error: float, place: str) -> None:
        """Keep the error and its place if it is worse than all before it."""
        if is_worse(error, self.error):
            self.error, self.place = error, place


def worst_of(found: Iterable[tuple[float, str]]) -> tuple[float, str]:
    """Return the largest of (error, place), NaN if one is."""
    worst = Worst()
    for error, place in found:
        worst.add(error, place)
    return worst.error, worst.place
