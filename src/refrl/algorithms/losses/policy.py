"""The policy loss: what every kind has in common around the quantity per token that each kind defines."""

from __future__ import annotations

import torch
from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.algorithms.kl import kl_estimate, kl_for_loss
from refrl.algorithms.losses.base import TokenInputs
from refrl.algorithms.losses.ratios import importance_weights
from refrl.algorithms.metrics import (
    approx_entropy,
    importance_metrics,
    mismatch_metrics,
    num_valid_samples,
    ratio_metrics,
)
from refrl.algorithms.reductions import check_count, reduce_tokens, select_valid, token_mean
from refrl.config import LossConfig
from refrl.config.algorithms import LOSSES


def policy_loss(
    logprobs_BT: Tensor,
    batch: Batch,
    config: LossConfig,
    *,
    global_valid_tokens: Tensor | float,
    global_valid_seqs: Tensor | float,
    entropy_BT: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the micro-batch's share of the policy loss, and its share of the metrics.

    Per token: weight * surrogate + beta * KL(current || reference) - gamma * entropy, reduced by `config.reduction`;
    the KL times current / old with `reference_policy_kl_importance_sampling`.
    The surrogate compares the current policy with `batch.old_logprobs_BT`; the weight (`importance_sampling`)
    corrects old against sampler. Values at masked positions affect neither loss, gradient nor metrics.

    Args:
        logprobs_BT: of the current policy, with gradient.
        batch: with advantages and old log-probabilities, and reference ones where their KL is in the loss. For one
            update per batch the old ones may be `logprobs_BT.detach()`: the caller says so, it is never assumed.
        global_valid_tokens: sampled tokens of the whole optimizer step, over micro-batches and ranks.
        global_valid_seqs: rows of the whole step with at least one sampled token.
        entropy_BT: entropy of the distribution at each token, with gradient; needed for an entropy bonus, and logged
            as `entropy` where given.

    Returns:
        The share of the loss (scalar) and the metrics of NeMo RL: loss, token_mult_prob_error, gen_kl_error,
        policy_kl_error, js_divergence_error, sampling_importance_ratio, is_oob_ratio, probs_ratio,
        probs_ratio_clamped and their _min and _max, approx_entropy, kl_penalty, global_valid_toks,
        global_valid_seqs, num_valid_samples. Merge them with `metrics.merge_metrics`.

    Raises:
        ValueError: the batch or the call does not have what the configuration needs, shapes disagree, or a count is 0.
    """
    check_count(global_valid_tokens, "global_valid_tokens")
    check_count(global_valid_seqs, "global_valid_seqs")
    advantages_B = _required(batch.advantages_B, "batch.advantages_B", "compute advantages first")
    old_BT = _required(
        batch.old_logprobs_BT, "batch.old_logprobs_BT", "score the batch before the first update"
    )
    if not logprobs_BT.shape == old_BT.shape == batch.mask_BT.shape == batch.sampling_logprobs_BT.shape:
        raise ValueError(
            f"log-probabilities {tuple(logprobs_BT.shape)}, old {tuple(old_BT.shape)}, sampling "
            f"{tuple(batch.sampling_logprobs_BT.shape)} and mask {tuple(batch.mask_BT.shape)} must have one shape"
        )
    if advantages_B.shape != logprobs_BT.shape[:1]:
        raise ValueError(
            f"advantages {tuple(advantages_B.shape)} must be one per row, {tuple(logprobs_BT.shape[:1])}"
        )
    mask_BT = batch.mask_BT
    current_BT = select_valid(logprobs_BT, mask_BT)
    old_BT = select_valid(old_BT.detach(), mask_BT)
    sampling_BT = select_valid(batch.sampling_logprobs_BT, mask_BT)
    advantages_B1 = advantages_B.unsqueeze(1)

    term = LOSSES.find(config.kind, "loss_fn.kind")(config)
    policy = term.surrogate(TokenInputs(current_BT, old_BT, sampling_BT, advantages_B1, mask_BT))
    if policy.loss_BT.shape != mask_BT.shape:
        raise ValueError(
            f"loss_fn.kind={config.kind} gave a loss of shape {tuple(policy.loss_BT.shape)}; it must be one per token, "
            f"{tuple(mask_BT.shape)}"
        )
    importance = importance_weights(old_BT, sampling_BT, config)
    token_loss_BT = importance.weights_BT * policy.loss_BT

    kl_BT = _reference_kl(current_BT, old_BT, batch, config)
    if config.kl_in == "loss":
        token_loss_BT = token_loss_BT + config.reference_policy_kl_penalty * kl_BT
    if config.entropy_coefficient:
        bonus_BT = _required(entropy_BT, "entropy_BT", "compute_logprobs returns it")
        token_loss_BT = token_loss_BT - config.entropy_coefficient * select_valid(bonus_BT, mask_BT)

    def reduce(values_BT: Tensor) -> Tensor:
        return reduce_tokens(
            values_BT,
            mask_BT,
            config.reduction,
            global_valid_tokens=global_valid_tokens,
            global_valid_seqs=global_valid_seqs,
            fixed_length=config.fixed_length,
        )

    loss = reduce(token_loss_BT)
    metrics = {
        "loss": loss.detach(),
        **mismatch_metrics(old_BT, sampling_BT, mask_BT, global_valid_tokens),
        **importance_metrics(importance.ratio_BT, importance.out_of_bounds_BT, mask_BT, global_valid_tokens),
        **ratio_metrics(policy.ratio_BT, policy.clamped_ratio_BT, mask_BT, global_valid_tokens),
        "approx_entropy": approx_entropy(current_BT, sampling_BT, mask_BT, global_valid_tokens),
        "kl_penalty": reduce(kl_BT.detach()),
        "num_valid_samples": num_valid_samples(mask_BT),
        "global_valid_toks": torch.as_tensor(global_valid_tokens),
        "global_valid_seqs": torch.as_tensor(global_valid_seqs),
    }
    if entropy_BT is not None:
        metrics["entropy"] = token_mean(entropy_BT.detach(), mask_BT, global_valid_tokens)
    return loss, metrics


def _reference_kl(current_BT: Tensor, old_BT: Tensor, batch: Batch, config: LossConfig) -> Tensor:
    """Return the KL to the reference at each token: for the loss with gradient, for the reward only to be logged."""
    if config.reference_policy_kl_penalty == 0:
        return torch.zeros_like(current_BT)
    ref_BT = _required(
        batch.ref_logprobs_BT, "batch.ref_logprobs_BT", "reference_policy_kl_penalty=0 does without"
    )
    ref_BT = select_valid(ref_BT.detach(), batch.mask_BT)
    if config.kl_in == "reward":
        return kl_estimate(current_BT.detach(), ref_BT, config.reference_policy_kl_type)
    kl_BT = kl_for_loss(
        current_BT, ref_BT, config.reference_policy_kl_type, config.reference_policy_kl_gradient
    )
    return kl_BT * (current_BT - old_BT).exp() if config.reference_policy_kl_importance_sampling else kl_BT


def _required(value: Tensor | None, name: str, remedy: str) -> Tensor:
    if value is None:
        raise ValueError(f"policy_loss needs {name}: {remedy}")
    return value
