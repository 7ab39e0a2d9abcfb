"""What a comparison of new runs with a baseline should detect, and what so many runs can detect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from seatrial.comparisons.baselines import Baseline, MetricBaseline
from seatrial.statistics.baselines import describe_needed, describe_too_few, needed_repeats, power_at
from seatrial.statistics.robust import Rates, visible_shift
from seatrial.verdict import Outcome, Verdict

TESTS_PER_METRIC = 4
"""Final-window mean, mean, drift, worst step; a metric whose repeats agree to the bit has none: it is compared
exactly, without false alarms."""
MIN_JUDGED = 5
"""Fewest repeats to learn noise from: of four, one in twenty shows less than a third of the true spread."""
USUAL_SHIFT = 3.0
"""The shift for which the power is reported if none is requested, in standard deviations between runs."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a comparison should detect."""

    alpha: float = 0.01
    """Largest probability that any metric of an unchanged stack fails."""
    power: float = 0.95
    """Probability that a shift of a metric's mean, over the run or the final window, is detected."""
    shift_in_sd: float | None = None
    """That shift, in standard deviations between runs; None: the smallest that the available runs detect."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The quantities that all verdicts of a comparison share."""

    baseline: Baseline
    wanted: Wanted
    num_new: int
    num_tests: int

    @property
    def alpha(self) -> float:
        """False-alarm rate of each test."""
        return self.wanted.alpha / max(1, self.num_tests)

    @property
    def rates(self) -> Rates:
        """False-alarm rates of a test, and of all tests of a metric."""
        return Rates(test=self.alpha, metric=self.alpha * TESTS_PER_METRIC)

    @property
    def shift(self) -> float:
        """The shift for which the power is reported, in standard deviations between runs."""
        return self.wanted.shift_in_sd or USUAL_SHIFT

    @property
    def power(self) -> float:
        """Power of a summary's test; 1 if all repeats agree to the bit."""
        if not self.num_tests:
            return 1.0
        num_baseline = self.baseline.num_repeats
        critical = self.rates.mean_critical(num_baseline, self.num_new)
        return power_at(num_baseline, self.num_new, self.shift, critical)

    @cached_property
    def visible(self) -> float:
        """The smallest shift of a mean that is detected with the wanted power, in standard deviations between runs."""
        if not self.num_tests:
            return 0.0
        return visible_shift(self.baseline.num_repeats, self.num_new, self.rates, self.wanted.power)

    @cached_property
    def too_few(self) -> bool:
        """Whether there are too few runs to pass a metric with noise."""
        if not self.num_tests:
            return False
        missed = self.wanted.shift_in_sd is not None and self.power < self.wanted.power
        return missed or self.baseline.num_repeats < MIN_JUDGED

    @property
    def source(self) -> str:
        """Where the thresholds come from."""
        return f"learned from {self.baseline.num_repeats} repeats"

    def details(self) -> dict[str, Any]:
        """Return the details that every verdict contains."""
        return {
            "false_alarm_rate": self.wanted.alpha,
            "num_tests": self.num_tests,
            "power": round(self.power, 4),
            "shift_in_sd": self.shift,
            "smallest_visible_shift_in_sd": round(self.visible, 2) if math.isfinite(self.visible) else None,
            "num_repeats": self.baseline.num_repeats,
            "num_new_runs": self.num_new,
            "commit": self.baseline.provenance.commit,
            "dirty": self.baseline.provenance.dirty,
        }


def sensitivity(
    baseline: Baseline, num_new: int, wanted: Wanted | None = None, *, tags: Sequence[str] = ()
) -> str | None:
    """Return what so many new runs detect, and how many would detect three standard deviations.

    Returns:
        One sentence; None if all repeats agree to the bit, or if a verdict of `compare` says it.
    """
    shared = sample_of(baseline, num_new, wanted or Wanted(), tags)
    if shared.too_few or not shared.num_tests or not math.isfinite(shared.visible):
        return None
    seen = (
        f"{num_new} new against {baseline.num_repeats} repeats detect shifts of a mean of {shared.visible:.2g} "
        f"standard deviations between runs and more ({shared.wanted.power:.0%} power for normal noise, at most "
        f"{shared.wanted.alpha:.2g} false alarms over {shared.num_tests} tests)"
    )
    if shared.visible <= shared.shift:
        return seen
    needed = needed_repeats(
        baseline.num_repeats,
        num_new,
        shared.shift,
        shared.alpha,
        shared.wanted.power,
        shared.rates.mean_critical,
    )
    return f"{seen}; {shared.shift:g} need {describe_needed(needed, baseline.num_repeats, num_new)}"


def sample_of(baseline: Baseline, num_new: int, wanted: Wanted, tags: Sequence[str]) -> Sample:
    """Return the sample of a comparison of some metrics, or of all if none are named."""
    noisy = sum(not deterministic(baseline.metrics[tag]) for tag in tags or baseline.metrics)
    return Sample(baseline=baseline, wanted=wanted, num_new=num_new, num_tests=noisy * TESTS_PER_METRIC)


def blocked_by(shared: Sample) -> Verdict:
    """Return the Blocked verdict on the number of runs."""
    repeats = shared.baseline.num_repeats
    few = (
        f"at least {MIN_JUDGED} repeats are needed to learn the noise, and there are {repeats}; "
        if repeats < MIN_JUDGED
        else ""
    )
    return Verdict(
        name="number of runs",
        outcome=Outcome.BLOCKED,
        reason=f"{few}{too_few_words(shared)}",
        source=shared.source,
        details=shared.details(),
    )


def deterministic(metric: MetricBaseline) -> bool:
    """Return whether all repeats agree to the bit at every step."""
    return all(row == metric.trajectories[0] for row in metric.trajectories)


def too_few_words(shared: Sample) -> str:
    """Return the power with which the shift is detected, and how many runs would be enough."""
    wanted = shared.wanted
    return describe_too_few(
        shared.baseline.num_repeats,
        shared.num_new,
        shared.shift,
        wanted.power,
        each=shared.alpha,
        alpha=wanted.alpha,
        num_tests=shared.num_tests,
        critical=shared.rates.mean_critical,
    )
