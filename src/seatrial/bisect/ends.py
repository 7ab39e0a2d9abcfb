"""What was observed at GOOD and BAD, and how many runs would distinguish them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seatrial.bisect.evidence_model import Observation, Question
from seatrial.bisect.history import History

_SURE, _POWER = 1.645, 1.282
"""Normal quantiles: 5 % false alarms, 90 % power."""


@dataclass(frozen=True)
class End:
    """The results of the runs at one end."""

    runs: int
    fails: int
    values: tuple[float, ...]

    def describe(self, question: Question) -> str:
        """Return the results in a few words."""
        if self.runs == 0:
            return "not judged"
        if question is Question.PASS_FAIL:
            return f"failed {self.fails} of {self.runs}"
        if not self.values:
            return f"left no value in {self.runs} run{'s' if self.runs > 1 else ''}"
        spread = f" ± {np.std(self.values, ddof=1):.3g}" if len(self.values) > 1 else ""
        lost = f", {self.fails} runs without a value" if self.fails else ""
        runs = f"{len(self.values)} run{'s' if len(self.values) > 1 else ''}"
        return f"{np.mean(self.values):.6g}{spread} ({runs}{lost})"


def end_of(history: History, observations: Sequence[Observation], position: int) -> End:
    """Return what was observed at one end."""
    seen = [item for item in observations if item.position in history.twins(position)]
    values = tuple(item.value for item in seen if item.value is not None)
    return End(len(seen), sum(item.failed for item in seen), values)


def runs_to_separate(good: End, bad: End, question: Question, smallest_rate_change: float) -> int | None:
    """Return how many runs of each end would distinguish them, if the observed difference is real.

    The comparison of two samples has 5 % false alarms and 90 % power; for rates the assumed difference is at least the
    smallest that counts as a culprit.

    Returns:
        None if an end was not run, has fewer than two values, or no difference was observed.
    """
    if not good.runs or not bad.runs:
        return None
    both = (_SURE + _POWER) ** 2
    if question is Question.PASS_FAIL:
        before = (good.fails + 0.5) / (good.runs + 1)
        after = (bad.fails + 0.5) / (bad.runs + 1)
        change = max(after - before, smallest_rate_change)
        variance = before * (1 - before) + after * (1 - after)
        return max(2, math.ceil(both * variance / change**2))
    if len(good.values) + len(bad.values) < 3 or not good.values or not bad.values:
        return None
    residuals = np.concatenate([np.subtract(e.values, np.mean(e.values)) for e in (good, bad)])
    variance = float((residuals**2).sum() / (len(residuals) - 2))
    change = float(np.mean(bad.values) - np.mean(good.values))
    if change == 0 or variance == 0:
        return None
    return max(2, math.ceil(2 * both * variance / change**2))
