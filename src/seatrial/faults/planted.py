"""Plants each fault of the catalogue by replacing one function of refrl in the launched process."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from refrl.config import AdvantageConfig, GRPORunConfig
    from refrl.generation.base import Completion, SamplingParams
    from refrl.rewards.verifiers import Verifier
    from refrl.rollout.sync import Rollouts, RolloutWorker
    from refrl.tasks import Example
    from refrl.training.session import Observer, Session

After = Callable[[Sequence[str]], None]
"""Called with refrl's arguments when the command has ended."""

CUT_BYTES = 7
"""Number of bytes cut off a truncated log: fewer than any record has."""


def _grpo_module() -> Any:
    """Return the module of the loop, whose imported names are replaced."""
    return importlib.import_module("refrl.training.grpo")


def _build_module() -> Any:
    """Return the module that builds a run's parts, whose imported names are replaced."""
    return importlib.import_module("refrl.training.build")


def _lr_zero() -> None:
    from refrl.policy import optimizer

    optimizer.learning_rate_factor = lambda update, config, num_updates: 0.0


def _advantages_negated() -> None:
    build = _build_module()
    right = build.compute_advantages

    def negated(rewards_B: torch.Tensor, group_ids_B: torch.Tensor, config: AdvantageConfig) -> torch.Tensor:
        advantages_B: torch.Tensor = -right(rewards_B, group_ids_B, config)
        return advantages_B

    build.compute_advantages = negated


def _rewards_shifted() -> None:
    from refrl.rollout.sync import RolloutWorker

    right = RolloutWorker.reward

    def shifted(
        self: RolloutWorker,
        examples: Sequence[Example],
        completions: Sequence[Completion],
        verifier: Verifier,
    ) -> Rollouts:
        rollouts = right(self, examples, completions, verifier)
        rewards = list(rollouts.scores.rewards)
        return replace(rollouts, scores=replace(rollouts.scores, rewards=rewards[1:] + rewards[:1]))

    RolloutWorker.reward = shifted  # type: ignore[method-assign]


def _sampled_at_another_temperature() -> None:
    from refrl.generation.torch_engine import TorchGenerator

    right = TorchGenerator.generate

    def cooler(
        self: TorchGenerator,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        generator: torch.Generator,
    ) -> list[Completion]:
        return right(self, prompts, replace(params, temperature=0.7), generator)

    TorchGenerator.generate = cooler  # type: ignore[method-assign]


def _loss_nan_at_step_2() -> None:
    grpo, build = _grpo_module(), _build_module()
    right_loss, right_step = build.policy_loss, grpo.train_step
    current = [0]

    def counted(session: Session, config: GRPORunConfig, step: int) -> None:
        current[0] = step
        right_step(session, config, step)

    def spoilt(*arguments: Any, **options: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, metrics = right_loss(*arguments, **options)
        if current[0] != 2:
            return loss, metrics
        return loss * math.nan, {**metrics, "loss": metrics["loss"] * math.nan}

    grpo.train_step, build.policy_loss = counted, spoilt


def _stop_after_step_1() -> None:
    grpo = _grpo_module()
    right = grpo.run_grpo

    def shortened(config: GRPORunConfig, observer: Observer | None = None) -> None:
        right(
            config.model_copy(update={"grpo": config.grpo.model_copy(update={"max_num_steps": 1})}), observer
        )

    grpo.run_grpo = shortened


def _truncate_log(words: Sequence[str]) -> None:
    """Cut the end off the event file that `logger.log_dir=DIR` among the words names."""
    (log_dir,) = [word.partition("=")[2] for word in words if word.startswith("logger.log_dir=")]
    for file in Path(log_dir).rglob("events.out.tfevents.*"):
        os.truncate(file, file.stat().st_size - CUT_BYTES)


def _log_truncated() -> After:
    return _truncate_log


def _from_another_path() -> None:
    """Do nothing: `copy_of_refrl` creates the environment that shows the fault."""


PLANTS: Mapping[str, Callable[[], After | None]] = {
    "lr-zero": _lr_zero,
    "advantages-negated": _advantages_negated,
    "rewards-shifted-between-rows": _rewards_shifted,
    "sample-at-0.7-score-at-1.0": _sampled_at_another_temperature,
    "loss-nan-at-step-2": _loss_nan_at_step_2,
    "stop-after-step-1-exit-0": _stop_after_step_1,
    "log-truncated": _log_truncated,
    "refrl-from-another-path": _from_another_path,
}
"""Function that plants each fault of the catalogue; its return value is called after the command."""


def run_with_fault(fault_id: str, words: Sequence[str], entry: Sequence[str]) -> int:
    """Plant a fault and run refrl with these arguments; return its exit status.

    Commands other than `grpo` run as they are: the fault is in the loop under trial. The processes of a run of
    several have it too: `entry` are the words of Python's command line that stand before refrl's own.
    """
    from refrl.cli import main
    from refrl.runtime import launcher

    launcher.COMMAND = (sys.executable, *entry)
    after = PLANTS[fault_id]() if words[:1] == ["grpo"] else None
    sys.argv = ["refrl", *words]
    status = main(list(words))
    if after is not None and "RANK" not in os.environ:  # once, by the process that the user started
        after(words)
    return status
