"""Computes advantages from rewards. Groups are identified by prompt id, never by position.

With r_i the reward of row i and g its group of n rows, in any order:

GRPO (arXiv 2402.03300, section 4.1.2)    A_i = (r_i - mean_g) / (std_g + eps)
... scale=batch (arXiv 2508.08221)        A_i = (r_i - mean_g) / (std of all rewards + eps)
Dr. GRPO (arXiv 2503.20783, section 3.2)  A_i = r_i - mean_g
RLOO (arXiv 2402.14740, equation 6)       A_i = r_i - mean of the group's other rows = n / (n - 1) (r_i - mean_g)
REINFORCE++ baseline (arXiv 2501.03262)   A_i = (r_i - mean_g) / (std over the batch of r - mean_g + eps)

A standard deviation is that of a sample (n - 1), as in TRL, verl and NeMo RL.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from pydantic import BaseModel
from torch import Tensor

from refrl.config import AdvantageConfig
from refrl.config.algorithms import ADVANTAGES
from refrl.config.registry import NoOptions, parse_options

EQUAL_REWARDS = 4 * torch.finfo(torch.float32).eps
"""Rewards of a group that spread less than this, relative to the largest, differ by rounding only."""


def compute_advantages(rewards_B: Tensor, group_ids_B: Tensor, config: AdvantageConfig) -> Tensor:
    """Return one advantage per row, computed in float64 and given back in the dtype of the rewards.

    Args:
        rewards_B: finite rewards.
        group_ids_B: the prompt's id of each row; rows of one group need not be adjacent.
        config: estimator and scale.

    Raises:
        ValueError: shapes disagree, there are no rows, a reward is not finite (the message names the rows), or the
            estimator gave something else than a finite advantage per row.
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
    estimator = ADVANTAGES.find(config.estimator, "grpo.advantage.estimator")(config)
    advantages_B = estimator.advantages(rewards, index_B)
    if advantages_B.shape != rewards_B.shape or not bool(advantages_B.isfinite().all()):
        raise ValueError(
            f"grpo.advantage.estimator={config.estimator} gave advantages of shape {tuple(advantages_B.shape)}, or "
            f"some that are not finite; {tuple(rewards_B.shape)} finite ones are needed"
        )
    return advantages_B.to(rewards_B.dtype)


class AdvantageEstimator(ABC):
    """Rewards to advantages; subclass it, and name the class in `grpo.advantage.estimator` or in an entry point."""

    Options: ClassVar[type[BaseModel]] = NoOptions
    """Schema of `grpo.advantage.options`: a pydantic model that forbids unknown keys."""

    def __init__(self, config: AdvantageConfig) -> None:
        """Take the section `grpo.advantage`; `self.options` is an instance of `Options`.

        Raises:
            ValueError: the options do not fit their schema.
        """
        self.config = config
        self.options: Any = parse_options(type(self).Options, config.options, "grpo.advantage.options")

    @abstractmethod
    def advantages(self, rewards: Tensor, index_B: Tensor) -> Tensor:
        """Return one finite advantage per row.

        Args:
            rewards: of each row, float64.
            index_B: each row's group, 0 to the number of groups less 1; rows of a group need not be adjacent.
        """

    @classmethod
    def specification(cls, config: AdvantageConfig) -> dict[str, object] | None:
        """Return what the estimator claims to compute, in an oracle's words; None where no oracle knows it."""
        return None


class GroupBaseline(AdvantageEstimator):
    """The built-in estimators: a baseline of the row's own group, then a scale.

    A group of one row has no baseline and a group of equal rewards no signal: both get exactly 0, and not rounding
    noise divided by epsilon.
    """

    def advantages(self, rewards: Tensor, index_B: Tensor) -> Tensor:
        """See `AdvantageEstimator`."""
        config = self.config
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
        return centred_B

    @classmethod
    def specification(cls, config: AdvantageConfig) -> dict[str, object]:
        """See `AdvantageEstimator`."""
        return {
            "estimator": config.estimator,
            "scale": config.resolved_scale,
            "epsilon": config.epsilon,
            "unbiased": True,
        }


def specification(config: AdvantageConfig) -> dict[str, object] | None:
    """Return what the configured estimator claims to compute, as plain values by name; None where no oracle knows."""
    found = ADVANTAGES.find(config.estimator, "grpo.advantage.estimator")
    return found.specification(config)


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
