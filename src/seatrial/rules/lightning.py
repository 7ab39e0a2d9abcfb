"""A callback for Lightning's Trainer: `Trainer(callbacks=[watch_callback()])`.

It runs the rules on what the modules log (`self.log`), at the steps at which Lightning passes it to its loggers
(`log_every_n_steps`), and stops the training at an alarm. Tried with Lightning 2.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.rules.engine import Judged
from seatrial.rules.loggers import WatchLogger


def watch_callback(*, stop: bool = True, rules: Sequence[str] = (), without: Sequence[str] = ()) -> Any:
    """Return the callback; its `watch.judged` has the finding of every rule, as of the last complete step.

    Args:
        stop: stop the training at the first alarm; without it alarms are only logged as warnings.
        rules: ids or families of rules; none means all.
        without: ids or families to leave out.

    Raises:
        ImportError: lightning is not installed.
        UsageError: a name is unknown.
    """
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers.logger import Logger

    class Forward(Logger):  # type: ignore[misc]
        """A logger next to the trainer's own that forwards every row."""

        name = "seatrial"
        version = 0

        def __init__(self, watch: WatchLogger) -> None:
            super().__init__()
            self._watch = watch

        def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
            self._watch.log(metrics, step)

        def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
            """Ignore hyperparameters."""

        def finalize(self, status: str) -> None:
            self._watch.finish()

    class WatchCallback(Callback):  # type: ignore[misc]
        """Adds the logger before the first step."""

        def __init__(self) -> None:
            self.watch = WatchLogger(on_alarm=self._alarm, rules=rules, without=without)
            self._trainer: Any = None

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            self._trainer = trainer
            if not any(isinstance(one, Forward) for one in trainer.loggers):
                trainer.loggers = [*trainer.loggers, Forward(self.watch)]

        def _alarm(self, item: Judged) -> None:
            if stop and self._trainer is not None:
                self._trainer.should_stop = True

    return WatchCallback()
