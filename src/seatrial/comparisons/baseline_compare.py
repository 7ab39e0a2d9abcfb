"""What a comparison of new runs with a baseline should detect, and what so many runs can detect."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np

from seatrial.comparisons.baselines import Baseline, MetricBaseline, final_window_mean
from seatrial.comparisons.comparable import why_not_comparable
from seatrial.evidence.runlog import RunLog
from seatrial.statistics.baselines import (
    Array,
    Deviation,
    describe_needed,
    describe_too_few,
    is_exact,
    needed_repeats,
    power_at,
)
from seatrial.statistics.robust import Rates, check_drift, check_summary, check_worst, visible_shift
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


def compare(
    baseline: Baseline,
    runs: Mapping[str, RunLog],
    wanted: Wanted | None = None,
    *,
    tags: Sequence[str] = (),
    now: datetime | None = None,
) -> list[Verdict]:
    """Compare new runs with a baseline, metric by metric and in both directions.

    Args:
        baseline: the repeats.
        runs: log of each new run by its path.
        wanted: false-alarm rate and power.
        tags: metrics to compare; all of the baseline if empty. They share the false-alarm rate.
        now: for the expiry.

    Returns:
        Per metric a verdict on each statistic, after one Blocked verdict if there are too few runs; only one Blocked
        verdict if the baseline has expired.
    """
    if baseline.expired(now or datetime.now(UTC)):
        return [
            Verdict(
                name="baseline is current",
                outcome=Outcome.BLOCKED,
                reason=f"the baseline of {baseline.created_at:%Y-%m-%d} expired on {baseline.expires_at:%Y-%m-%d}; "
                "record it again",
            )
        ]
    shared = sample_of(baseline, len(runs), wanted or Wanted(), tags)
    chosen = {tag: baseline.metrics[tag] for tag in tags or baseline.metrics}
    first = [blocked_by(shared)] if shared.too_few else []
    with np.errstate(over="ignore", invalid="ignore"):
        return first + [
            verdict for tag, metric in chosen.items() for verdict in _judge(tag, metric, runs, shared)
        ]


def _judge(tag: str, metric: MetricBaseline, runs: Mapping[str, RunLog], shared: Sample) -> Iterator[Verdict]:
    """Yield the verdicts of one metric; a series that cannot be compared yields one."""
    for source, log in runs.items():
        if found := why_not_comparable(tag, metric.steps, source, log, longer=True):
            outcome, reason = found
            yield Verdict(
                name=tag, outcome=outcome, reason=reason, source=shared.source, details=shared.details()
            )
            return
    old_NS = np.array(metric.trajectories)
    new_MS = np.stack([log.series[tag].values[: len(metric.steps)] for log in runs.values()])
    span = (metric.steps[0], metric.steps[-1])
    if deterministic(metric):
        yield _worst(tag, old_NS, new_MS, metric, list(runs), shared)
        return
    window = shared.baseline.window
    finals = np.array([final_window_mean(row, window) for row in new_MS])
    final_steps = (metric.steps[-window:][0], span[1])
    names = list(runs)
    yield _summary(
        f"{tag}: mean of the last {min(window, len(metric.steps))} points",
        np.array(metric.final_window_means),
        finals,
        final_steps,
        names,
        shared,
    )
    yield _summary(f"{tag}: mean", np.array(metric.means), new_MS.mean(axis=1), span, names, shared)
    yield _drift(tag, old_NS, new_MS, span, shared)
    yield _worst(tag, old_NS, new_MS, metric, list(runs), shared)


def _summary(
    name: str,
    old_N: Array,
    new_M: Array,
    steps: tuple[int, int],
    sources: Sequence[str],
    shared: Sample,
) -> Verdict:
    deviation = check_summary(old_N, new_M, shared.rates)
    centre, value = float(old_N.mean()), float(new_M.mean())
    if is_exact(old_N):
        bound = f"== {old_N[0]:.9g}"
        words = f"{value:.9g}; all {len(old_N)} repeats gave {old_N[0]:.9g}"
        return _conclude(name, deviation, words, value, bound, new_M.size, steps, shared)
    alone = deviation.run is not None and len(new_M) > 1
    spread = float(old_N.std(ddof=1))
    allowed = deviation.critical * spread * math.sqrt(1 / len(old_N) + 1 / (1 if alone else len(new_M)))
    of_run = ""
    if alone:
        assert deviation.run is not None
        value, of_run = float(new_M[deviation.run]), f" in {sources[deviation.run]} alone"
    bound = f"{centre - allowed:.6g} to {centre + allowed:.6g}"
    words = f"{value:.6g}{of_run}, {_signed(deviation)} the baseline's mean {centre:.6g} (sd {spread:.3g})"
    if deviation.holds and not shared.too_few and math.isfinite(shared.visible):
        words += f"; a shift of {shared.visible * spread:.3g} ({shared.visible:.2g} sd) would be detected"
    return _conclude(name, deviation, words, value, bound, new_M.size, steps, shared)


def _drift(tag: str, old_NS: Array, new_MS: Array, steps: tuple[int, int], shared: Sample) -> Verdict:
    deviation = check_drift(old_NS, new_MS, shared.rates)
    scale = math.sqrt(1 / len(old_NS) + 1 / len(new_MS))
    words = f"all steps taken together are {_signed(deviation)} the baseline"
    bound = f"-{deviation.critical * scale:.3g} to {deviation.critical * scale:.3g} sd"
    return _conclude(f"{tag}: drift", deviation, words, deviation.in_sd, bound, new_MS.size, steps, shared)


def _worst(
    tag: str,
    old_NS: Array,
    new_MS: Array,
    metric: MetricBaseline,
    sources: Sequence[str],
    shared: Sample,
) -> Verdict:
    deviation = check_worst(old_NS, new_MS, shared.rates)
    assert deviation.run is not None
    assert deviation.step is not None
    step = metric.steps[deviation.step]
    value = float(new_MS[deviation.run, deviation.step])
    where = f"step {step} of {sources[deviation.run]} is {value:.9g}"
    steps = (metric.steps[0], metric.steps[-1])
    if deviation.critical == 0:
        value_then = float(old_NS[0, deviation.step])
        bound = f"== {value_then:.9g}"
        words = f"{where}, all {len(old_NS)} repeats gave {value_then:.9g}"
    elif deterministic(metric):
        value, bound = 0.0, "exactly the same"
        words = f"every step equals that of all {len(old_NS)} repeats to the bit"
    else:
        value = deviation.in_sd
        allowed = deviation.critical * math.sqrt(1 + 1 / len(old_NS))
        mean = old_NS[:, deviation.step].mean()
        words = f"{where}, {_signed(deviation)} the baseline's mean there {mean:.6g}"
        bound = f"-{allowed:.3g} to {allowed:.3g} sd at every step"
    return _conclude(f"{tag}: worst step", deviation, words, value, bound, new_MS.size, steps, shared)


def _conclude(
    name: str,
    deviation: Deviation,
    words: str,
    value: float,
    bound: str,
    num_samples: int,
    steps: tuple[int, int],
    shared: Sample,
) -> Verdict:
    """Return Fail for a deviation; otherwise Pass, or Blocked if there are too few runs."""
    outcome, reason = Outcome.PASS, words
    if not deviation.holds:
        outcome = Outcome.FAIL
    elif deviation.critical > 0 and shared.too_few:
        outcome = Outcome.BLOCKED
        reason = f"{words}: within the noise, but there are too few runs to be sure"
    return Verdict(
        name=name,
        outcome=outcome,
        reason=reason,
        value=value,
        bound=bound,
        num_samples=num_samples,
        steps=steps,
        source=shared.source,
        details={**shared.details(), "t": str(deviation.t), "critical_t": deviation.critical},
    )


def _signed(deviation: Deviation) -> str:
    return f"{abs(deviation.in_sd):.3g} sd {'above' if deviation.in_sd >= 0 else 'below'}"
