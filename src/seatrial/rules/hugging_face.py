"""A callback for the Hugging Face Trainer, and so for TRL: `trainer.add_callback(watch_callback())`.

It runs the rules on what the trainer has logged, and stops the training at an alarm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.evidence.runlog import RunLog
from seatrial.rules.engine import Judged, judge_log, select
from seatrial.rules.healthy import Baseline, HealthyRuns
from seatrial.rules.loggers import log_of_points, warn_of_alarms


def log_of_history(history: Sequence[Mapping[str, Any]]) -> RunLog:
    """Return `TrainerState.log_history` as a log: one series a key, at the steps of its rows."""
    points: dict[str, tuple[list[int], list[float]]] = {}
    for row in history:
        for tag, value in row.items():
            if tag != "step" and isinstance(value, int | float):
                steps, values = points.setdefault(tag, ([], []))
                steps.append(int(row["step"]))
                values.append(float(value))
    return log_of_points("log_history", points)


def watch_callback(
    *,
    stop: bool = True,
    rules: Sequence[str] = (),
    without: Sequence[str] = (),
    healthy: HealthyRuns | None = None,
) -> Any:
    """Return the callback; its `judged` has the finding of every rule, as of the last row.

    Args:
        stop: stop the training at the first alarm; without it alarms are only logged as warnings.
        rules: ids or families of rules; none means all.
        without: ids or families to leave out.
        healthy: earlier healthy runs of the same configuration.

    Raises:
        ImportError: transformers is not installed.
        UsageError: a name is unknown.
    """
    from transformers import TrainerCallback

    class WatchCallback(TrainerCallback):
        """Judges at every row that is logged."""

        def __init__(self) -> None:
            self.judged: list[Judged] = []
            self._rules = select(rules, without)
            self._warned: set[str] = set()

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            log = log_of_history(state.log_history)
            self.judged = judge_log(log, self._rules, baseline=Baseline(runs=healthy) if healthy else None)
            warn_of_alarms(self.judged, self._warned)
            if stop and self._warned:
                control.should_training_stop = True

    return WatchCallback()
