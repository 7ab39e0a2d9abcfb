"""Rewards become advantages. Groups are told by prompt id, never by position.

With r_i the reward of row i and g its group of n rows, wherever they stand:

GRPO (arXiv 2402.03300, section 4.1.2)    A_i = (r_i - mean_g) / (std_g + eps)
... scale=batch (arXiv 2508.08221)        A_i = (r_i - mean_g) / (std of all rewards + eps)
Dr. GRPO (arXiv 2503.20783, section 3.2)  A_i = r_i - mean_g
RLOO (arXiv 2402.14740, equation 6)       A_i = r_i - mean of the group's other rows = n / (n - 1) (r_i - mean_g)
REINFORCE++ baseline (arXiv 2501.03262)   A_i = (r_i - mean_g) / (std over the batch of r - mean_g + eps)

A standard deviation is that of a sample (n - 1), as in TRL, verl and NeMo RL.
"""

from __future__ import annotations

import torch
from torch import Tensor

from refrl.config import AdvantageConfig

EQUAL_REWARDS = 4 * torch.finfo(torch.float32).eps
"""Rewards of a group that spread less than this, relative to the largest, differ by rounding only."""


def compute_advantages(rewards_B: Tensor, group_ids_B: Tensor, config: AdvantageConfig) -> Tensor:
    """Return one advantage per row, computed in float64 and given back in the dtype of the rewards.

    A group of one row has no baseline and a group of equal rewards no signal: both get exactly 0, and not rounding
    noise divided by epsilon.

    Args:
        rewards_B: finite rewards.
        group_ids_B: the prompt's id of each row; rows of one group need not be adjacent.
        config: estimator and scale.

    Raises:
        ValueError: shapes disagree, there are no rows, or a reward is not finite (the message names the rows).
    """
    if rewards_B.ndim != 1 or rewards_B.shape != group_ids_B.shape or not len(rewards_B):
        raise ValueError(
            f"rewards {tuple(rewards_B.shape)} and group ids {tuple(group_ids_B.shape)} must both be (B,) with B > 0"
        )
    bad = torch.nonzero(~rewards_B.isfinite()).flatten().tolist()
    if bad:
        raise ValueError(f"rewards of rows {bad} are not finite: drop or score those rows before advantages")
    rewards = rewards_B.double()
    index_B = group_index(group_ids_B)
    centred_B = rewards - group_mean(rewards, index_B)
    centred_B = torch.where(has_spread(rewards, index_B), centred_B, 0.0)
    size_B = group_size(index_B)
    if config.estimator == "rloo":
        centred_B = centred_B * size_B / (size_B - 1).clamp_min(1)
    scale = config.resolved_scale
    if scale == "group":
        centred_B = centred_B / (group_std(rewards, index_B) + config.epsilon)
    elif scale == "batch":
        spread = centred_B if config.estimator == "reinforce_plus_plus_baseline" else rewards
        centred_B = centred_B / (_std(spread) + config.epsilon)
    return centred_B.to(rewards_B.dtype)


def group_index(group_ids_B: Tensor) -> Tensor:
    """Return each row's group as an index 0..num_groups - 1, in the order of the ids."""
    return group_ids_B.unique(return_inverse=True)[1]


def group_size(index_B: Tensor) -> Tensor:
    """Return for each row how many rows its group has."""
    return index_B.bincount()[index_B]


def group_mean(values_B: Tensor, index_B: Tensor) -> Tensor:
    """Return for each row the mean over its group."""
    sums = values_B.new_zeros(int(index_B.max()) + 1).index_add(0, index_B, values_B)
    return sums[index_B] / group_size(index_B)


def group_std(values_B: Tensor, index_B: Tensor) -> Tensor:
    """Return for each row the sample standard deviation over its group; 0 in a group of one."""
    squares_B = (values_B - group_mean(values_B, index_B)).square()
    size_B = group_size(index_B)
    return (group_mean(squares_B, index_B) * size_B / (size_B - 1).clamp_min(1)).sqrt()


def has_spread(rewards_B: Tensor, index_B: Tensor) -> Tensor:
    """Return for each row whether the rewards of its group differ by more than rounding."""
    num_groups = int(index_B.max()) + 1
    empty = rewards_B.new_zeros(num_groups)
    low = empty.scatter_reduce(0, index_B, rewards_B, "amin", include_self=False)
    high = empty.scatter_reduce(0, index_B, rewards_B, "amax", include_self=False)
    return (high - low > EQUAL_REWARDS * torch.maximum(low.abs(), high.abs()))[index_B]


def _std(values_B: Tensor) -> Tensor:
    return values_B.std() if len(values_B) > 1 else values_B.new_zeros(())
