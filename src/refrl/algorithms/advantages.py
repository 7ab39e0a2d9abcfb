"""Rewards become advantages. Groups are told by prompt id, never by position.

With r_i the reward of row i, g its group of n rows:
GRPO (arXiv 2402.03300)       A_i = (r_i - mean_g) / (std_g + eps)
Dr. GRPO (arXiv 2503.20783)   A_i = r_i - mean_g
RLOO (arXiv 2402.14740)       A_i = r_i - mean of the group's other rows = (r_i - mean_g) n / (n - 1)
REINFORCE++ baseline (arXiv 2501.03262)   A_i = (r_i - mean_g) / std over the batch of (r - mean_g)
"""

from __future__ import annotations

import torch
from torch import Tensor

from refrl.config import AdvantageConfig


def compute_advantages(rewards_B: Tensor, group_ids_B: Tensor, config: AdvantageConfig) -> Tensor:
    """Return `advantages_B`, computed in float64 and given back in the dtype of the rewards.

    A group of one row, and a group whose rewards are all equal, get exactly 0.

    Raises:
        ValueError: shapes disagree, or a reward is not finite (the message names the rows).
    """
    if rewards_B.ndim != 1 or rewards_B.shape != group_ids_B.shape:
        raise ValueError(
            f"rewards {tuple(rewards_B.shape)} and group ids {tuple(group_ids_B.shape)} must both be (B,)"
        )
    bad = torch.nonzero(~rewards_B.isfinite()).flatten().tolist()
    if bad:
        raise ValueError(f"rewards of rows {bad} are not finite")
    rewards = rewards_B.double()
    _, group_B = group_ids_B.unique(return_inverse=True)
    num_groups = int(group_B.max()) + 1 if len(group_B) else 0
    ones = torch.ones_like(rewards)
    size_B = _group_sum(ones, group_B, num_groups)[group_B]
    mean_B = _group_sum(rewards, group_B, num_groups)[group_B] / size_B
    centred_B = rewards - mean_B
    if config.estimator == "rloo":
        centred_B = centred_B * size_B / (size_B - 1).clamp_min(1)
    variance_B = _group_sum((rewards - mean_B).square(), group_B, num_groups)[group_B] / (
        size_B - 1
    ).clamp_min(1)
    if config.estimator == "grpo" and config.scale == "group":
        centred_B = centred_B / (variance_B.sqrt() + config.epsilon)
    return centred_B.to(rewards_B.dtype)


def _group_sum(values_B: Tensor, group_B: Tensor, num_groups: int) -> Tensor:
    return torch.zeros(num_groups, dtype=values_B.dtype, device=values_B.device).index_add(
        0, group_B, values_B
    )
