"""Judges tracked metrics against repeats, in a process of its own: `python -m seatrial.pytest_plugin.judging`.

The statistics import numpy and scipy, which would add 75 MB to the memory that the next test of the session tracks.
Standard input is JSON: `judge` and `metrics`, with the fields of `Judge` and `TrackedMetric`. The output is verdicts.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from seatrial.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from seatrial.statistics.baselines import Deviation

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
    resolution: float = 0.0
    """Smaller differences of the means are none: the measurement itself varies by as much."""


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
        exact = is_exact(repeats) and metric.resolution == 0.0
        bound = _bound(metric.direction, centre, max(allowed, metric.resolution), exact=exact)
        words = _words(new, repeats, deviation)
        if allowed < metric.resolution and abs(float(new.mean()) - centre) <= metric.resolution:
            return self._say(
                metric, Outcome.PASS, f"{words}; less than {metric.resolution:g} is no difference", bound
            )
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


def judged_apart(judge: Judge, metrics: Sequence[TrackedMetric]) -> list[Verdict]:
    """Judge metrics in another process, or here if this one has scipy's statistics already."""
    if not metrics or "scipy.stats" in sys.modules:
        return [judge.verdict(metric) for metric in metrics]
    question = {"judge": asdict(judge), "metrics": [metric._asdict() for metric in metrics]}
    sources = str(Path(__file__).parents[2])
    paths = [sources, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "seatrial.pytest_plugin.judging"],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    if done.returncode != 0:
        raise RuntimeError(f"the tracked metrics could not be judged: {done.stderr}")
    return [Verdict.from_json(verdict) for verdict in json.loads(done.stdout)]


def main() -> None:
    """Judge what standard input requests, and print the verdicts."""
    question = json.load(sys.stdin)
    judge = Judge(**question["judge"])
    metrics = [TrackedMetric(**metric) for metric in question["metrics"]]
    json.dump([judge.verdict(metric).to_json() for metric in metrics], sys.stdout)


if __name__ == "__main__":
    main()
