"""Hold new runs to a baseline: Pass, Fail, or Blocked with the repeats that the wanted power would need."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from seatrial.checks.baseline_statistics import (
    Array,
    Deviation,
    allowed_difference,
    drift_deviation,
    is_exact,
    power_of,
    summary_deviation,
    too_few_in_words,
    worst_deviation,
)
from seatrial.checks.baselines import Baseline, MetricBaseline, final_window_mean
from seatrial.checks.comparable import unfit
from seatrial.evidence.runlog import RunLog
from seatrial.verdict import Outcome, Verdict

TESTS_PER_METRIC = 4
"""Final-window mean, mean, drift, worst step; a metric whose repeats agree to the bit has none: it is compared
exactly and never alarms falsely."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a comparison is to be able to tell."""

    alpha: float = 0.01
    """Probability that any metric of an unchanged stack fails."""
    power: float = 0.95
    """Probability that a shift is found in a metric's mean over the run or the final window."""
    shift_in_sd: float = 3.0
    """That shift, in standard deviations between runs."""


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """The figures that all verdicts of a comparison share."""

    baseline: Baseline
    wanted: Wanted
    num_new: int
    num_tests: int

    @property
    def alpha(self) -> float:
        """False-alarm rate of each test."""
        return self.wanted.alpha / max(1, self.num_tests)

    @property
    def power(self) -> float:
        """Power of a summary's test."""
        return power_of(self.baseline.num_repeats, self.num_new, self.wanted.shift_in_sd, self.alpha)

    @property
    def source(self) -> str:
        return f"learned from {self.baseline.num_repeats} repeats"

    def details(self) -> dict[str, Any]:
        return {
            "false_alarm_rate": self.wanted.alpha,
            "num_tests": self.num_tests,
            "power": round(self.power, 4),
            "shift_in_sd": self.wanted.shift_in_sd,
            "num_repeats": self.baseline.num_repeats,
            "num_new_runs": self.num_new,
            "commit": self.baseline.provenance.commit,
            "dirty": self.baseline.provenance.dirty,
        }


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
        runs: log of each new run by where it lies.
        wanted: false-alarm rate and power.
        tags: metrics to compare; all of the baseline when empty. The false alarms are shared out among these.
        now: for the expiry.

    Returns:
        Per metric a verdict on each statistic; one Blocked verdict in all when the baseline has expired.
    """
    if baseline.expired(now or datetime.now(UTC)):
        return [
            Verdict(
                name="baseline is current",
                outcome=Outcome.BLOCKED,
                reason=f"the baseline of {baseline.created_at:%Y-%m-%d} expired on {baseline.expires_at:%Y-%m-%d}; "
                "record it anew",
            )
        ]
    chosen = {tag: baseline.metrics[tag] for tag in tags or baseline.metrics}
    noisy = sum(not _deterministic(metric) for metric in chosen.values())
    shared = _Comparison(
        baseline=baseline,
        wanted=wanted or Wanted(),
        num_new=len(runs),
        num_tests=noisy * TESTS_PER_METRIC,
    )
    with np.errstate(over="ignore", invalid="ignore"):
        return [verdict for tag, metric in chosen.items() for verdict in _judge(tag, metric, runs, shared)]


def _deterministic(metric: MetricBaseline) -> bool:
    return all(row == metric.trajectories[0] for row in metric.trajectories)


def _judge(
    tag: str, metric: MetricBaseline, runs: Mapping[str, RunLog], shared: _Comparison
) -> Iterator[Verdict]:
    """Yield the verdicts of one metric; a series that cannot be compared gives one."""
    for source, log in runs.items():
        if found := unfit(tag, metric.steps, source, log):
            outcome, reason = found
            yield Verdict(
                name=tag, outcome=outcome, reason=reason, source=shared.source, details=shared.details()
            )
            return
    old_NS = np.array(metric.trajectories)
    new_MS = np.stack([log.series[tag].values for log in runs.values()])
    span = (metric.steps[0], metric.steps[-1])
    if _deterministic(metric):
        yield _worst(tag, old_NS, new_MS, metric, list(runs), shared)
        return
    window = shared.baseline.window
    finals = np.array([final_window_mean(row, window) for row in new_MS])
    final_steps = (metric.steps[-window:][0], span[1])
    yield _summary(
        f"{tag}: mean of the last {min(window, len(metric.steps))} points",
        np.array(metric.final_window_means),
        finals,
        final_steps,
        shared,
    )
    yield _summary(f"{tag}: mean", np.array(metric.means), new_MS.mean(axis=1), span, shared)
    yield _drift(tag, old_NS, new_MS, span, shared)
    yield _worst(tag, old_NS, new_MS, metric, list(runs), shared)


def _summary(name: str, old_N: Array, new_M: Array, steps: tuple[int, int], shared: _Comparison) -> Verdict:
    deviation = summary_deviation(old_N, new_M, shared.alpha)
    allowed = allowed_difference(old_N, len(new_M), shared.alpha)
    centre = float(old_N.mean())
    if is_exact(old_N):
        bound = f"== {old_N[0]:.9g}"
        words = f"{new_M.mean():.9g}; all {len(old_N)} repeats gave {old_N[0]:.9g}"
    else:
        bound = f"{centre - allowed:.6g} to {centre + allowed:.6g}"
        words = (
            f"{new_M.mean():.6g}, {_signed(deviation)} the baseline's mean {centre:.6g} "
            f"(sd {old_N.std(ddof=1):.3g})"
        )
    return _conclude(name, deviation, words, float(new_M.mean()), bound, new_M.size, steps, shared)


def _drift(tag: str, old_NS: Array, new_MS: Array, steps: tuple[int, int], shared: _Comparison) -> Verdict:
    deviation = drift_deviation(old_NS, new_MS, shared.alpha)
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
    shared: _Comparison,
) -> Verdict:
    deviation = worst_deviation(old_NS, new_MS, shared.alpha)
    assert deviation.run is not None
    assert deviation.step is not None
    step = metric.steps[deviation.step]
    value = float(new_MS[deviation.run, deviation.step])
    where = f"step {step} of {sources[deviation.run]} is {value:.9g}"
    steps = (metric.steps[0], metric.steps[-1])
    if deviation.critical == 0:
        expected = float(old_NS[0, deviation.step])
        words = f"{where}, all {len(old_NS)} repeats gave {expected:.9g}"
        return _conclude(
            f"{tag}: worst step", deviation, words, value, f"== {expected:.9g}", new_MS.size, steps, shared
        )
    if _deterministic(metric):
        words = f"every step equals that of all {len(old_NS)} repeats to the bit"
        return _conclude(
            f"{tag}: worst step", deviation, words, 0.0, "exactly the same", new_MS.size, steps, shared
        )
    allowed = deviation.critical * math.sqrt(1 + 1 / len(old_NS))
    words = f"{where}, {_signed(deviation)} the baseline's mean there {old_NS[:, deviation.step].mean():.6g}"
    bound = f"-{allowed:.3g} to {allowed:.3g} sd at every step"
    return _conclude(
        f"{tag}: worst step", deviation, words, deviation.in_sd, bound, new_MS.size, steps, shared
    )


def _conclude(
    name: str,
    deviation: Deviation,
    words: str,
    value: float,
    bound: str,
    num_samples: int,
    steps: tuple[int, int],
    shared: _Comparison,
) -> Verdict:
    """Fail what deviates; Blocked what does not, where a shift would probably have been missed."""
    outcome, reason = Outcome.PASS, words
    if not deviation.holds:
        outcome = Outcome.FAIL
    elif deviation.critical > 0 and shared.num_tests and shared.power < shared.wanted.power:
        outcome = Outcome.BLOCKED
        reason = f"{words}: within the noise, but {_too_few(shared)}"
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


def _too_few(shared: _Comparison) -> str:
    wanted = shared.wanted
    return too_few_in_words(
        shared.baseline.num_repeats,
        shared.num_new,
        wanted.shift_in_sd,
        wanted.power,
        each=shared.alpha,
        alpha=wanted.alpha,
        num_tests=shared.num_tests,
    )


def _signed(deviation: Deviation) -> str:
    return f"{abs(deviation.in_sd):.3g} sd {'above' if deviation.in_sd >= 0 else 'below'}"
