"""Ratios of policies, and the clipped surrogate made of them.

c is the current policy, p the old one (before this step's updates). Every function takes log-probabilities in which
padding is already 0, and returns a quantity per token (B rows, T tokens).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from refrl.algorithms.losses.base import Surrogate
from refrl.config import LossConfig

MAX_LOG_RATIO = 80.0
"""exp(80) still fits float32. Beyond it an infinite ratio, though not the one chosen by the minimum, would make the
gradient NaN (0 * inf); up to it nothing is changed."""


def token_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor) -> Tensor:
    """Return c / p of each token (PPO, arXiv 1707.06347, section 3)."""
    return (logprobs_BT - old_logprobs_BT).clamp_max(MAX_LOG_RATIO).exp()


def sequence_ratio(logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return (c / p) of each whole completion to the power 1 / length, at every token of its row.

    GSPO, arXiv 2507.18071, equation 7. Its gradient reaches every valid token of the row.
    """
    log_ratio_B = (logprobs_BT - old_logprobs_BT).sum(1) / mask_BT.bool().sum(1).clamp_min(1)
    return log_ratio_B.clamp_max(MAX_LOG_RATIO).exp().unsqueeze(1).expand_as(logprobs_BT)


def clipped_surrogate(ratio_BT: Tensor, advantages_B1: Tensor, config: LossConfig) -> Surrogate:
    """Return -min(ratio A, clip(ratio) A), and with a dual clip at most c |A| where A is negative.

    PPO (arXiv 1707.06347, equation 7); unequal bounds are DAPO's clip-higher (arXiv 2503.14476, equation 10); the
    dual clip is arXiv 1912.09729, equation 5.
    """
    clamped_BT = ratio_BT.clamp(1 - config.ratio_clip_min, 1 + config.ratio_clip_max)
    loss_BT = torch.maximum(-ratio_BT * advantages_B1, -clamped_BT * advantages_B1)
    if config.ratio_clip_c is not None:
        bound_B1 = -config.ratio_clip_c * advantages_B1
        loss_BT = torch.where(advantages_B1 < 0, torch.minimum(loss_BT, bound_B1), loss_BT)
    return Surrogate(loss_BT, ratio_BT, clamped_BT)


class ImportanceWeights(NamedTuple):
    """Correction for a sampler whose probabilities differ from the trainer's; carries no gradient."""

    weights_BT: Tensor
    """What the surrogate loss of each token is multiplied with."""
    ratio_BT: Tensor
    """p / g after any truncation, whether or not it is used as a weight."""
    out_of_bounds_BT: Tensor
    """1 where the untruncated p / g is outside the bounds."""


@torch.no_grad()
def importance_weights(
    old_logprobs_BT: Tensor, sampling_logprobs_BT: Tensor, config: LossConfig
) -> ImportanceWeights:
    """Return the weight p / g of each token: cut at the upper bound, or 0 outside the band.

    `truncated`: min(p / g, max) (TIS; Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy
    RL training"). `masked`: p / g inside [min, max], else 0 (IcePop; Ring-1T, arXiv 2510.18855). A token of weight 0
    still counts in the denominators.
    """
    ratio_BT = (old_logprobs_BT - sampling_logprobs_BT).exp()
    if config.importance_sampling == "none":
        return ImportanceWeights(torch.ones_like(ratio_BT), ratio_BT, torch.zeros_like(ratio_BT))
    inside_BT = ratio_BT <= config.importance_sampling_max
    if config.importance_sampling == "truncated":
        weights_BT = ratio_BT.clamp_max(config.importance_sampling_max)
    else:
        inside_BT &= ratio_BT >= config.importance_sampling_min
        weights_BT = torch.where(inside_BT, ratio_BT, 0.0)
    return ImportanceWeights(weights_BT, weights_BT, (~inside_BT).to(ratio_BT.dtype))
