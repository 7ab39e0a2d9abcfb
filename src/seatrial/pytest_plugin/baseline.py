"""`--tracker-baseline`: fails a test if a value that it tracks is outside the range of a commit's repeats.

The repeats are earlier sessions in the history of results. The new runs are this session and, for a clean tree, the
earlier sessions of its commit. A value within the noise passes only if the runs would have detected a shift.
"""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from seatrial.pytest_plugin.baseline_history import Repeats, as_number, of_commit, read_repeats
from seatrial.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from seatrial.pytest_plugin.tracking import Tracker
    from seatrial.statistics.baselines import Deviation

PLUGIN_NAME = "seatrial-tracker-baseline"
ALPHA = 0.01
"""Probability that any metric of an unchanged project fails."""
POWER = 0.95
"""Probability that a shift of the wanted size is detected."""
DEFAULT_SHIFT = 6.0
"""Standard deviations that one new run must be able to detect; no baseline detects 3 at 1 % false alarms."""
MIN_REPEATS = 2
_MAX_MAGNITUDE = 1e150
"""Squares of larger values overflow."""


class TrackedMetric(NamedTuple):
    """A metric of one test, and the repeats that it is compared with."""

    name: str
    direction: str | None
    """`lower` or `higher` is better: only a change to the other side fails. None: both fail."""
    repeats: Sequence[float]
    new: Sequence[float]
    """Earlier runs of this commit, then this one."""


@dataclass(frozen=True, kw_only=True)
class Judge:
    """What a comparison should detect, and the number of metrics that share the false alarms."""

    commit: str
    num_metrics: int
    shift_in_sd: float

    def verdict(self, metric: TrackedMetric) -> Verdict:
        """Judge one metric."""
        import numpy as np

        repeats, new = np.array(metric.repeats, dtype=float), np.array(metric.new, dtype=float)
        if not np.isfinite(new).all():
            return self._say(metric, Outcome.FAIL, f"is {new[~np.isfinite(new)][0]:g}")
        if len(repeats) < MIN_REPEATS:
            reason = (
                f"{len(repeats)} repeats of it passed at commit {self.commit[:12]} on this device; "
                f"at least {MIN_REPEATS} are needed: run the tests there again"
            )
            return self._say(metric, Outcome.BLOCKED, reason)
        if not np.isfinite(repeats).all() or max(abs(repeats).max(), abs(new).max()) > _MAX_MAGNITUDE:
            reason = f"a repeat at commit {self.commit[:12]} is not finite, or too large to learn from"
            return self._say(metric, Outcome.BLOCKED, reason)
        return self._compared(metric, repeats, new)

    def _compared(self, metric: TrackedMetric, repeats: Any, new: Any) -> Verdict:
        from seatrial.statistics.baselines import (
            allowed_difference,
            describe_too_few,
            is_exact,
            power_of,
            summary_deviation,
        )

        # The tables are two-sided: if only one direction can fail, both tails may go to it.
        each = ALPHA * (1 if metric.direction is None else 2) / self.num_metrics
        deviation = summary_deviation(repeats, new, each)
        centre, allowed = float(repeats.mean()), allowed_difference(repeats, len(new), each)
        bound = _bound(metric.direction, centre, allowed, exact=is_exact(repeats))
        words = _words(new, repeats, deviation)
        if not deviation.holds and not _is_better(metric.direction, deviation.in_sd):
            return self._say(metric, Outcome.FAIL, words, bound)
        power = power_of(len(repeats), len(new), self.shift_in_sd, each)
        if deviation.critical > 0 and deviation.holds and power < POWER:
            few = describe_too_few(
                len(repeats),
                len(new),
                self.shift_in_sd,
                POWER,
                each=each,
                alpha=ALPHA,
                num_tests=self.num_metrics,
            )
            return self._say(metric, Outcome.BLOCKED, f"{words}: within the noise, but {few}", bound)
        return self._say(metric, Outcome.PASS, words, bound)

    def _say(self, metric: TrackedMetric, outcome: Outcome, reason: str, bound: str | None = None) -> Verdict:
        value = math.fsum(metric.new) / len(metric.new) if metric.new else None
        return Verdict(
            name=metric.name,
            outcome=outcome,
            reason=reason,
            value=value,
            bound=bound,
            num_samples=len(metric.new),
            source=f"learned from {len(metric.repeats)} repeats",
            details={"commit": self.commit, "num_metrics": self.num_metrics, "shift_in_sd": self.shift_in_sd},
        )

    def missing(self, name: str, num_repeats: int) -> Verdict:
        """Judge a metric that the repeats have and the test did not track."""
        return Verdict(
            name=name,
            outcome=Outcome.FAIL,
            reason=f"was not tracked; {num_repeats} repeats at commit {self.commit[:12]} have it",
            source=f"learned from {num_repeats} repeats",
        )


def _bound(direction: str | None, centre: float, allowed: float, *, exact: bool) -> str:
    low, high = f"{centre - allowed:.6g}", f"{centre + allowed:.6g}"
    if direction is None:
        return f"== {centre:.9g}" if exact else f"{low} to {high}"
    return f"<= {high}" if direction == "lower" else f">= {low}"


def _words(new: Any, repeats: Any, deviation: Deviation) -> str:
    of_runs = "" if len(new) == 1 else f"the mean of {len(new)} runs, "
    if math.isinf(deviation.in_sd) or deviation.critical == 0:
        return f"is {of_runs}{new.mean():.9g}; all {len(repeats)} repeats gave {repeats[0]:.9g}"
    side = "above" if deviation.in_sd >= 0 else "below"
    noise = f"{repeats.mean():.6g} (sd {repeats.std(ddof=1):.3g})"
    off = f"{abs(deviation.in_sd):.3g} sd {side} the mean of {len(repeats)} repeats, {noise}"
    return f"is {of_runs}{new.mean():.6g}, {off}"


def _is_better(direction: str | None, in_sd: float) -> bool:
    return (direction == "lower" and in_sd < 0) or (direction == "higher" and in_sd > 0)


class TrackerBaseline:
    """Compares the metrics of each tracked test with the repeats; exists in every process that runs tests."""

    def __init__(self, config: pytest.Config, where: str, history: Path) -> None:
        chosen: float | None = config.option.tracker_baseline_shift
        shift = DEFAULT_SHIFT if chosen is None else chosen
        if not 0 < shift < 1000:
            raise pytest.UsageError(
                f"--tracker-baseline-shift {shift:g}: give a positive number of standard deviations"
            )
        self._repeats = read_repeats(where, history, config.invocation_params.dir)
        num_metrics = max(1, self._repeats.count())
        self._judge = Judge(commit=self._repeats.commit, num_metrics=num_metrics, shift_in_sd=shift)
        self._earlier = _of_this_commit(self._repeats.commit, history, config.rootpath)

    def pytest_report_header(self) -> str:
        """Return what the tests are compared with."""
        left_out = "".join(f", {count} {reason} left out" for reason, count in self._repeats.left_out.items())
        return (
            f"tracker baseline: {len(self._repeats.sessions)} repeats of {self._judge.num_metrics} metrics at commit "
            f"{self._repeats.commit[:12]}{left_out}; they must detect a shift of {self._judge.shift_in_sd:g} sd"
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a test that passed if a metric that it tracked deviates."""
        report = yield
        from seatrial.pytest_plugin.tracking import ACTIVE, BASELINE_PROPERTY

        tracker = item.stash.get(ACTIVE, None)
        if call.when != "call" or tracker is None or not report.passed or hasattr(report, "wasxfail"):
            return report
        verdicts = list(self._verdicts(item.nodeid, tracker))
        item.user_properties.append(
            (BASELINE_PROPERTY, json.dumps([verdict.to_json() for verdict in verdicts]))
        )
        report.user_properties = list(item.user_properties)
        failed = [verdict for verdict in verdicts if verdict.outcome is Outcome.FAIL]
        if failed:
            report.outcome = "failed"
            report.longrepr = "\n".join(f"{verdict.name} {verdict.reason}" for verdict in failed)
        return report

    def _verdicts(self, nodeid: str, tracker: Tracker) -> Iterator[Verdict]:
        device = tracker.device()
        tracked = tracker.tracked()
        for name, (value, direction) in tracked.items():
            number = as_number(value)
            if number is None:
                continue
            earlier = self._earlier.of(nodeid, name, device) if self._earlier is not None else []
            repeats = self._repeats.of(nodeid, name, device)
            yield self._judge.verdict(TrackedMetric(name, direction, repeats, [*earlier, number]))
        for name in self._repeats.names(nodeid, device):
            if name not in tracked:
                yield self._judge.missing(name, len(self._repeats.of(nodeid, name, device)))


def _of_this_commit(baseline: str, history: Path, root: Path) -> Repeats | None:
    """Return earlier sessions of the tested commit; None for a changed tree, or for the baseline's own commit."""
    from seatrial.pytest_plugin.results import git_state

    commit, dirty = git_state(root)
    if commit is None or dirty or commit == baseline:
        return None
    return of_commit(history, commit)
