"""What the options of a run say that it computes: its loss, its advantages, and the learning rate of each update.

Options are flat, by NeMo RL's dotted names. Needs no torch, so that trials may use it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from seatrial.relations.records import AdvantageSpec, LossSpec


def loss_spec(options: Mapping[str, Any]) -> LossSpec:
    """Return the loss that a run's options name."""
    get = options.get
    in_reward = get("loss_fn.kl_in", "loss") == "reward"
    return LossSpec(
        kind=get("loss_fn.kind", "ppo_clip"),
        ratio_clip_min=get("loss_fn.ratio_clip_min", 0.2),
        ratio_clip_max=get("loss_fn.ratio_clip_max", 0.2),
        ratio_clip_c=get("loss_fn.ratio_clip_c"),
        reduction=get("loss_fn.reduction", "token"),
        fixed_length=get("loss_fn.fixed_length"),
        kl_penalty=0.0 if in_reward else get("loss_fn.reference_policy_kl_penalty", 0.0),
        kl_type=get("loss_fn.reference_policy_kl_type", "k3"),
        kl_gradient=get("loss_fn.reference_policy_kl_gradient", "estimator"),
        kl_importance_sampling=get("loss_fn.reference_policy_kl_importance_sampling", False),
        entropy_coefficient=get("loss_fn.entropy_coefficient", 0.0),
        importance_sampling=get("loss_fn.importance_sampling", "none"),
        importance_sampling_max=get("loss_fn.importance_sampling_max", 2.0),
        importance_sampling_min=get("loss_fn.importance_sampling_min", 0.5),
    )


def advantage_spec(options: Mapping[str, Any]) -> AdvantageSpec:
    """Return the advantages that a run's options name."""
    return AdvantageSpec(
        estimator=options.get("grpo.advantage.estimator", "grpo"),
        scale=options.get("grpo.advantage.scale", "group"),
        epsilon=options.get("grpo.advantage.epsilon", 1e-6),
    )


def learning_rate(options: Mapping[str, Any], update: int, num_updates: int) -> float:
    """Return the rate of update 1..num_updates: a linear warm-up to the peak, then the decay to its floor."""
    peak, warmup = options["policy.optimizer.lr"], options.get("policy.scheduler.warmup_steps", 0)
    if update <= warmup:
        return float(peak * update / warmup)
    progress = min(1.0, (update - 1 - warmup) / max(1, num_updates - warmup))
    falling = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
    }[options.get("policy.scheduler.name", "constant")]
    floor = 0.0 if options.get("policy.scheduler.name", "constant") == "constant" else _floor(options)
    return float(peak * (floor + (1.0 - floor) * falling))


def _floor(options: Mapping[str, Any]) -> float:
    return float(options.get("policy.scheduler.min_lr_ratio", 0.0))
