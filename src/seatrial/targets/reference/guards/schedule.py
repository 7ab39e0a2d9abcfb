"""Checks the schedule of a run of refrl: learning rates in closed form, steps, and validations that are due."""

from __future__ import annotations

import math
from collections.abc import Mapping

from refrl.config import GRPORunConfig
from seatrial.guards import Guards
from seatrial.relations.measures.updates import validations_due
from seatrial.relations.oracles.options import learning_rate
from seatrial.targets.reference.guards.base import RunConfig, loop_of, options_of, updates_per_step


class ScheduleGuard:
    """Checks that rates, steps and validations come when the configuration says."""

    def __init__(self, config: RunConfig, guards: Guards) -> None:
        """Begin with no validation."""
        self._config, self._guards, self._options = config, guards, options_of(config)
        self._num_updates = updates_per_step(config)
        self._validated: list[int] = []
        # Where filters empty whole updates the schedule lags behind the steps.
        self._may_lag = isinstance(config, GRPORunConfig) and (
            config.grpo.overlong_filtering or config.grpo.zero_variance_filter
        )

    def check_step(self, step: int, metrics: Mapping[str, float], num_updates: int) -> None:
        """Check that the logged rate is the mean of the scheduled rates of the step's updates."""
        before, in_all = (n * self._num_updates for n in (step - 1, loop_of(self._config).max_num_steps))
        rates = [learning_rate(self._options, before + n, in_all) for n in range(1, num_updates + 1)]
        wanted = sum(rates) / len(rates) if rates else 0.0
        good = self._may_lag or math.isclose(metrics["lr"], wanted, rel_tol=1e-5, abs_tol=1e-15)
        wrong = f"step {step}: {metrics['lr']:.6g}, the schedule gives {wanted:.6g}"
        self._guards.hold("learning rate as configured", good, wrong, number=num_updates)

    def validated(self, step: int) -> None:
        """Record a validation."""
        self._validated.append(step)

    def ended(self, last_step: int, first_step: int) -> None:
        """Check that the steps and validations were those of the configuration."""
        loop = loop_of(self._config)
        ends_early = (
            self._config.checkpointing.checkpoint_must_save_by is not None
            or getattr(loop, "stop_at_accuracy", None) is not None
        )
        wrong = f"the last step is {last_step}, configured are {loop.max_num_steps}"
        good = last_step == loop.max_num_steps or ends_early
        self._guards.hold("steps as configured", good, wrong, number=last_step)
        name = "grpo" if isinstance(self._config, GRPORunConfig) else "sft"
        due = validations_due(self._options, loop=name, first=first_step, last=last_step)
        wrong = f"validated after {self._validated}, due after {due}"
        self._guards.hold("validations as configured", due == self._validated, wrong, number=last_step)
