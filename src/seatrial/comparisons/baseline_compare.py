"""Compares new runs with a baseline: Pass with the smallest shift that so many runs detect, Fail, or Blocked.

A comparison is Blocked if the baseline has fewer than five repeats, or if it would probably miss the requested shift;
one verdict says so for all metrics, with the number of runs that would be enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from seatrial.comparisons.baseline_sample import Sample, Wanted, blocked_by, deterministic, sample_of
from seatrial.comparisons.baselines import Baseline, MetricBaseline, final_window_mean
from seatrial.comparisons.comparable import why_not_comparable
from seatrial.evidence.runlog import RunLog
from seatrial.statistics.baselines import Array, Deviation, is_exact
from seatrial.statistics.robust import check_drift, check_summary, check_worst
from seatrial.verdict import Outcome, Verdict


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
