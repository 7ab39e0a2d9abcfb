"""What the losses of verl's engines take: rows in turn, batches of rows with prompts of one token, and settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.records import LossSpec

LOSSES = ("verl.workers.utils.losses", "verl.workers.roles.utils.losses")
"""Modules of the engines' losses; the second one in releases before 0.7."""
CLIP = (0.2, 0.28)
ACTOR_SPEC = LossSpec(
    ratio_clip_min=CLIP[0],
    ratio_clip_max=CLIP[1],
    ratio_clip_c=3.0,
    kl_penalty=0.1,
    entropy_coefficient=0.05,
)
"""The loss of an actor with entropy and KL."""


def actor_config(config_class: Any, spec: LossSpec, **more: Any) -> Any:
    """Return verl's settings of an actor for a loss; `more` are further settings.

    Releases before 0.7 have no counts of the whole batch.
    """
    counts: dict[str, Any] = {"global_batch_info": {}} if "global_batch_info" in _fields(config_class) else {}
    return config_class(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=spec.ratio_clip_min,
        clip_ratio_high=spec.ratio_clip_max,
        clip_ratio_c=spec.ratio_clip_c,
        use_kl_loss=True,
        kl_loss_coef=spec.kl_penalty,
        kl_loss_type="low_var_kl",
        entropy_coeff=spec.entropy_coefficient,
        **counts,
        **more,
    )


def _fields(configuration: Any) -> set[str]:
    return {item.name for item in dataclasses.fields(configuration)}


def of_rows(values_BT: Tensor) -> Tensor:
    """Return the values of all rows in turn; a prompt is one token, and each value is that of the next one."""
    return torch.cat([values_BT, torch.zeros_like(values_BT[:, :1])], dim=1).flatten()


def batch_of_rows(mask_BT: Tensor, tensors: Mapping[str, Tensor], **counts: Any) -> Any:
    """Return a batch of completions, whose prompts are one token.

    Args:
        mask_BT: of the tokens that train.
        tensors: by verl's names.
        counts: over all micro-batches and ranks, by verl's names.
    """
    from tensordict import TensorDict
    from verl.utils import tensordict_utils

    B, T = mask_BT.shape
    data = TensorDict(
        {
            "prompts": torch.ones(B, 1, dtype=torch.long),
            "responses": torch.ones(B, T, dtype=torch.long),
            "attention_mask": torch.ones(B, 1 + T, dtype=torch.long),
            "response_mask": mask_BT.long(),
            **tensors,
        },
        batch_size=[B],
    )
    tensordict_utils.assign_non_tensor(data, **counts)
    return data
