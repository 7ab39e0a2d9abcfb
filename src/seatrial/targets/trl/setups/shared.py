"""Options of `TrainingArguments` that setups of several trainers set together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEDULE: Mapping[str, Any] = {
    "lr_scheduler_type": "polynomial",
    "lr_scheduler_kwargs": {"power": 2.0},
    "warmup_steps": 1,
    "adam_beta1": 0.8,
    "max_grad_norm": 0.3,
    "weight_decay": 0.2,
    "logging_first_step": True,
    "include_num_input_tokens_seen": "non_padding",
    "eval_on_start": True,
    "eval_delay": 3,
    "per_device_eval_batch_size": 3,
}
"""A schedule with a warm-up, and evaluations at other steps than by default."""
EPOCH: Mapping[str, Any] = {
    "max_steps": -1,
    "num_train_epochs": 1,
    "lr_scheduler_type": "cosine",
    "train_sampling_strategy": "sequential",
    "dataloader_drop_last": True,
    "gradient_checkpointing": True,
    "per_device_eval_batch_size": 2,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
    "load_best_model_at_end": True,
    "metric_for_best_model": "mean_token_accuracy",
    "greater_is_better": False,
}
"""One epoch in the order of the split, at whose end the weights of the lowest accuracy are loaded.

That is another choice than the default, and usually not the last step's.
"""
OWN_ROUTERS: Mapping[str, Any] = {"output_router_logits": True, "router_aux_loss_coef": 0.5}
"""Of a model whose configuration requests the load-balancing loss of its experts, with a weight that shows."""
