"""Losses as pure functions of log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.algorithms.kl import kl_estimate
from refrl.config import LossConfig


def policy_loss(
    logprobs_BT: Tensor,
    batch: Batch,
    config: LossConfig,
    *,
    global_valid_tokens: Tensor | float,
    global_valid_seqs: Tensor | float,
    entropy_BT: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the micro-batch's share of the loss and its metrics; shares add up to the loss of the whole batch.

    Raises:
        ValueError: the batch lacks advantages, old or (where used) reference log-probabilities.
    """
    if batch.advantages_B is None or batch.old_logprobs_BT is None:
        raise ValueError("policy_loss needs batch.advantages_B and batch.old_logprobs_BT")
    valid_BT = batch.mask_BT.bool()
    logprobs = torch.where(valid_BT, logprobs_BT, 0.0)
    old = torch.where(valid_BT, batch.old_logprobs_BT, 0.0)
    sampling = torch.where(valid_BT, batch.sampling_logprobs_BT, 0.0)
    advantages_B1 = batch.advantages_B.unsqueeze(1)
    ratio = (logprobs - old).exp()
    clamped = ratio.clamp(1 - config.ratio_clip_min, 1 + config.ratio_clip_max)
    token_loss = -torch.minimum(ratio * advantages_B1, clamped * advantages_B1)
    kl = torch.zeros_like(token_loss)
    if config.reference_policy_kl_penalty and config.kl_in == "loss":
        if batch.ref_logprobs_BT is None:
            raise ValueError("policy_loss needs batch.ref_logprobs_BT")
        ref = torch.where(valid_BT, batch.ref_logprobs_BT, 0.0)
        kl = kl_estimate(logprobs, ref, config.reference_policy_kl_type)
        token_loss = token_loss + config.reference_policy_kl_penalty * kl

    def mean(values_BT: Tensor) -> Tensor:
        return torch.where(valid_BT, values_BT, 0.0).sum() / global_valid_tokens

    loss = mean(token_loss)
    with torch.no_grad():
        metrics = {
            "loss": loss.detach(),
            "token_mult_prob_error": mean((sampling - old).abs().exp()),
            "gen_kl_error": mean(torch.expm1(old - sampling) - (old - sampling)),
            "probs_ratio": mean(ratio),
            "probs_ratio_clamped": mean(clamped),
            "kl_penalty": mean(kl),
            "global_valid_toks": torch.as_tensor(global_valid_tokens),
            "global_valid_seqs": torch.as_tensor(global_valid_seqs),
        }
    return loss, metrics


def sft_loss(logprobs_BT: Tensor, mask_BT: Tensor, *, global_valid_tokens: Tensor | float) -> Tensor:
    """Return the negative log-likelihood of the valid tokens over the global number of valid tokens."""
    return -torch.where(mask_BT.bool(), logprobs_BT, 0.0).sum() / global_valid_tokens
