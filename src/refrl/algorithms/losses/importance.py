"""The correction of a policy loss for a sampler whose probabilities differ from the trainer's.

p is the old policy (before this step's updates), g the sampler; padding is already 0 in both.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from refrl.config import LossConfig


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
