"""Estimators of KL(policy || reference) from the log-probabilities of sampled tokens.

Source: Schulman 2020, "Approximating KL divergence". With r = reference / policy at a token sampled from the policy,
k1 = -log r, k2 = (log r)^2 / 2, k3 = r - 1 - log r. k1 and k3 have the KL as their mean; k3 and k2 are never negative.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

KLKind = Literal["k1", "k2", "k3"]


def kl_estimate(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, kind: KLKind) -> Tensor:
    """Estimate KL(policy || reference) at each token sampled from the policy.

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
