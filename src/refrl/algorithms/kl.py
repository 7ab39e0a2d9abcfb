"""KL(policy || reference): estimators from the log-probabilities of sampled tokens, in the loss or in the reward.

With r = reference / policy at a token that the policy sampled (Schulman 2020, "Approximating KL divergence"):
k1 = -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r. The mean of k1 and of k3 is the KL; k2 and k3 are never negative.

What a good value is worth as a loss is another matter (arXiv 2506.09477; arXiv 2510.01555). Differentiating through
the estimator at tokens sampled from the policy, the expected gradient is: of k1 exactly 0, so k1 in the loss holds
nothing; of k2 the gradient of KL(policy || reference); of k3 the gradient of KL(reference || policy), equal to the
wanted one to first order only. In the reward, k1 gives the wanted gradient. Times the differentiable ratio of the
policy to the one that sampled, k1 and k3 have the expected value and gradient of the KL for any sampling policy
(DeepSeek-V3.2, arXiv 2512.02556).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from refrl.algorithms.reductions import select_valid

KLKind = Literal["k1", "k2", "k3"]


def kl_estimate(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, kind: KLKind) -> Tensor:
    """Estimate KL(policy || reference) at each token, in nats.

    Raises:
        ValueError: the kind is unknown.
    """
    log_ratio_BT = ref_logprobs_BT - logprobs_BT
    if kind == "k1":
        return -log_ratio_BT
    if kind == "k2":
        return log_ratio_BT.square() / 2
    if kind == "k3":
        return torch.expm1(log_ratio_BT) - log_ratio_BT
    raise ValueError(f"unknown KL estimator {kind!r}; known: k1, k2, k3")


def kl_for_loss(
    logprobs_BT: Tensor, ref_logprobs_BT: Tensor, kind: KLKind, gradient: Literal["estimator", "k2"]
) -> Tensor:
    """Return the KL term of a loss: the value of `kind`, with its own gradient or with that of k2.

    `estimator` is what GRPO and most stacks do (see the module's docstring for what that minimises). `k2` is the
    straight-through form: k2's gradient, which is the KL's own on-policy, under the reported value of `kind`.
    """
    value_BT = kl_estimate(logprobs_BT, ref_logprobs_BT, kind)
    if gradient == "estimator":
        return value_BT
    k2_BT = kl_estimate(logprobs_BT, ref_logprobs_BT, "k2")
    return k2_BT + (value_BT - k2_BT).detach()


def penalise_rewards(
    rewards_B: Tensor,
    logprobs_BT: Tensor,
    ref_logprobs_BT: Tensor,
    mask_BT: Tensor,
    *,
    coefficient: float,
    kind: KLKind,
) -> Tensor:
    """Take each completion's KL, summed over its valid tokens, off its reward, before advantages are computed.

    Masked positions are given two log-probabilities of 0, between which every estimator is 0. `logprobs_BT` are those
    of the policy that sampled (the old policy); nothing here carries a gradient. Source: arXiv 2009.01325,
    section 3.4; RLOO, arXiv 2402.14740, equation 2.
    """
    with torch.no_grad():
        kl_BT = kl_estimate(select_valid(logprobs_BT, mask_BT), select_valid(ref_logprobs_BT, mask_BT), kind)
        return rewards_B - coefficient * kl_BT.sum(1)
