"""The options of a trainer's run by a plan, and what laws read of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.relations.contracts.trainers import TrainerPlan
from seatrial.targets.common.trainers import CPU_OPTIONS
from seatrial.targets.trl.made_rows import NUM_HELD_OUT
from seatrial.targets.trl.setup import Setup

OPTIMIZER: Mapping[str, Any] = {
    "learning_rate": 0.01,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "weight_decay": 0.1,
    "adam_beta1": 0.9,
    "adam_beta2": 0.99,
    "adam_epsilon": 1e-6,
    "max_grad_norm": 0.5,
}
"""Of every run, where its setup has no other; its gradients are mostly longer than the limit."""


def intended_options(setup: Setup, plan: TrainerPlan) -> dict[str, Any]:
    """Return the options of a setup's run: those of the CPU, of the plan, and its own."""
    return {
        **CPU_OPTIONS,
        **setup.optional,
        "per_device_train_batch_size": plan.num_rows // (plan.num_ranks * plan.num_micro_batches),
        "gradient_accumulation_steps": plan.num_micro_batches,
        "per_device_eval_batch_size": NUM_HELD_OUT
        * setup.options.get("num_generations", 1)
        // plan.num_ranks,
        "max_steps": plan.num_steps,
        "logging_steps": plan.logging_steps,
        **OPTIMIZER,
        "seed": plan.seed,
        **({"eval_strategy": "steps", "eval_steps": plan.eval_steps} if plan.eval_steps else {}),
        **({"save_strategy": "steps", "save_steps": 1} if plan.ends_after else {}),
        **setup.options,
        # Batches of unequal widths, whose predictions are put together.
        **({"per_device_eval_batch_size": NUM_HELD_OUT // 2} if plan.predicts else {}),
    }


def optimizer_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the laws read of the optimizer and its schedule."""
    schedule = given.get("lr_scheduler_kwargs") or {}
    return {
        "policy.optimizer.name": "sgd" if given.get("optim") == "sgd" else "adamw",
        "policy.optimizer.lr": given["learning_rate"],
        "policy.optimizer.weight_decay": given["weight_decay"],
        "policy.optimizer.betas": (given["adam_beta1"], given["adam_beta2"]),
        "policy.optimizer.eps": given["adam_epsilon"],
        "policy.max_grad_norm": given["max_grad_norm"],
        "policy.scheduler.name": given["lr_scheduler_type"],
        "policy.scheduler.warmup_steps": given["warmup_steps"],
        **{f"policy.scheduler.{name}": value for name, value in schedule.items()},
    }
