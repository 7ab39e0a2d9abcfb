"""A run of refrl held to its schedule: the learning rate in closed form, the steps, the validations that are due."""

from __future__ import annotations

import math
from collections.abc import Mapping

from refrl.config import GRPORunConfig, SFTRunConfig
from seatrial.guards import Guards


class AsScheduled:
    """Asks whether rates, steps and validations come when the configuration says."""

    def __init__(self, config: GRPORunConfig | SFTRunConfig, guards: Guards) -> None:
        """Begin with nothing validated."""
        self._config, self._guards = config, guards
        self._validated: list[int] = []
        self._may_lag = False
        if isinstance(config, GRPORunConfig):
            rows = config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt
            self.num_updates = rows // config.policy.train_global_batch_size
            # Where filters empty whole updates the schedule lags behind the steps.
            self._may_lag = config.grpo.overlong_filtering or config.grpo.zero_variance_filter
        else:
            self.num_updates = 1

    def trained(self, step: int, metrics: Mapping[str, float], num_updates: int) -> None:
        """The rate that is logged is that of the schedule, the mean of a step's updates."""
        rate = self._config.policy.optimizer.lr
        first = (step - 1) * self.num_updates
        rates = [rate * self._factor(first + update) for update in range(num_updates)]
        wanted = sum(rates) / len(rates) if rates else 0.0
        good = self._may_lag or math.isclose(metrics["lr"], wanted, rel_tol=1e-5, abs_tol=1e-15)
        wrong = f"step {step}: {metrics['lr']:.6g}, the schedule gives {wanted:.6g}"
        self._guards.hold("learning rate as configured", good, wrong, number=num_updates)

    def validated(self, step: int) -> None:
        """Note a validation."""
        self._validated.append(step)

    def ended(self, last_step: int, first_step: int) -> None:
        """The steps and validations were those of the configuration."""
        config = self._config
        loop = config.grpo if isinstance(config, GRPORunConfig) else config.sft
        ends_early = (
            config.checkpointing.checkpoint_must_save_by is not None
            or getattr(loop, "stop_at_accuracy", None) is not None
        )
        wrong = f"the last step is {last_step}, configured are {loop.max_num_steps}"
        good = last_step == loop.max_num_steps or ends_early
        self._guards.hold("steps as configured", good, wrong, number=last_step)
        due = {
            step
            for step in range(first_step, last_step + 1)
            if loop.val_period and step % loop.val_period == 0
        }
        due |= {0} if loop.val_at_start and first_step == 1 else set()
        has_ended = first_step <= last_step == loop.max_num_steps
        due |= {last_step} if loop.val_at_end and has_ended else set()
        good = sorted(due) == self._validated
        wrong = f"validated after {self._validated}, due after {sorted(due)}"
        self._guards.hold("validations as configured", good, wrong, number=last_step)

    def _factor(self, update: int) -> float:
        """Return the closed form of the schedule at an update, from 0."""
        scheduler, config = self._config.policy.scheduler, self._config
        loop = config.grpo if isinstance(config, GRPORunConfig) else config.sft
        total = loop.max_num_steps * self.num_updates
        if update < scheduler.warmup_steps:
            return (update + 1) / scheduler.warmup_steps
        if scheduler.name == "constant":
            return 1.0
        done = min(1.0, (update - scheduler.warmup_steps) / max(1, total - scheduler.warmup_steps))
        falling = 1 - done if scheduler.name == "linear" else 0.5 + 0.5 * math.cos(math.pi * done)
        return scheduler.min_lr_ratio + (1 - scheduler.min_lr_ratio) * falling
