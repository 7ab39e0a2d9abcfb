"""A logger that runs the rules on every row, next to a stack's own loggers.

    tracking.logger["seatrial"] = WatchLogger()      # verl: `verl.utils.tracking.Tracking`
    logger.loggers.append(WatchLogger())             # NeMo RL: `nemo_rl.utils.logger.Logger`
    monitor.monitors.append(WatchLogger())           # prime-rl: `prime_rl.utils.monitor.multi.MultiMonitor`

Where these names were read: verl 03e1b657, NeMo RL 0275e758, prime-rl 3f612056 (which turns exceptions of a
monitor into warnings: stop a run with SystemExit).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from seatrial.evidence.runlog import RunLog, Series
from seatrial.rules.engine import Judged, judge_log, select
from seatrial.rules.rule import Level

_LOGGER = logging.getLogger("seatrial.watch")


Points = Mapping[str, tuple[list[int], list[float]]]
"""Steps and values by tag."""


def log_of_points(source: str, points: Points) -> RunLog:
    """Return points as a log."""
    series = {
        tag: Series(tag=tag, steps=np.array(steps, dtype=np.int64), values=np.array(values))
        for tag, (steps, values) in points.items()
    }
    return RunLog(sources=[source], series=series)


def warn_of_alarms(judged: Sequence[Judged], warned: set[str]) -> list[Judged]:
    """Log the first alarm of each rule as a warning, and return these; `warned` keeps the ids of the rules."""
    new = [item for item in judged if item.finding.level is Level.ALARM and item.rule.id not in warned]
    for item in new:
        warned.add(item.rule.id)
        _LOGGER.warning("%s: %s", item.verdict.name, item.verdict.reason)
    return new


class WatchLogger:
    """Keeps what is logged and judges it at each new step; an alarm is logged once and passed to `on_alarm`."""

    def __init__(
        self,
        *,
        on_alarm: Callable[[Judged], None] | None = None,
        rules: Sequence[str] = (),
        without: Sequence[str] = (),
    ) -> None:
        """Begin with nothing logged.

        Args:
            on_alarm: called with the first alarm of each rule; what it raises stops the run.
            rules: ids or families of rules; none means all.
            without: ids or families to leave out.

        Raises:
            UsageError: a name is unknown.
        """
        self.judged: list[Judged] = []
        """The finding of every rule, as of the last complete step."""
        self._on_alarm = on_alarm
        self._rules = select(rules, without)
        self._points: dict[str, tuple[list[int], list[float]]] = {}
        self._step: int | None = None
        self._warned: set[str] = set()

    def log(self, data: Mapping[str, Any], step: int | None = None) -> None:
        """Record the scalars of a step (verl); without one it is the row's own `step` (prime-rl), or the last one."""
        own = data.get("step", self._step or 0)
        self.log_metrics(data, int(own) if step is None else step)

    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        """Record scalars of a step (NeMo RL); those on their own clock (`step_metric`) are left out."""
        if step_metric is not None:
            return
        if self._step is not None and step > self._step:
            self._judge()
        self._step = step
        for name, value in metrics.items():
            number = _number(value)
            if number is not None:
                steps, values = self._points.setdefault(f"{prefix}/{name}" if prefix else name, ([], []))
                steps.append(step)
                values.append(number)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Ignore hyperparameters."""

    def log_histogram(self, histogram: Sequence[Any], step: int, name: str) -> None:
        """Ignore histograms."""

    def log_plot(self, figure: Any, step: int, name: str) -> None:
        """Ignore figures."""

    def log_samples(self, rollouts: Sequence[Any], step: int) -> None:
        """Ignore samples."""

    def log_final_samples(self) -> None:
        """Ignore samples."""

    def log_distributions(self, distributions: Mapping[str, Sequence[float]], step: int) -> None:
        """Ignore distributions."""

    def save_final_summary(self, filename: str = "") -> None:
        """Judge the last step."""
        self._judge()

    def finish(self) -> None:
        """Judge the last step."""
        self._judge()

    def _judge(self) -> None:
        self.judged = judge_log(log_of_points("logger", self._points), self._rules)
        for item in warn_of_alarms(self.judged, self._warned):
            if self._on_alarm is not None:
                self._on_alarm(item)


def _number(value: Any) -> float | None:
    """Return a scalar as a number: one of Python, of NumPy, or a tensor of one element; None for anything else."""
    if hasattr(value, "item") and math.prod(getattr(value, "shape", ())) == 1:
        value = value.item()
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
