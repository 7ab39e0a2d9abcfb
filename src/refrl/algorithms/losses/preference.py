"""Losses of pairs of completions of which one is preferred: DPO, and the reward model."""

from __future__ import annotations

import torch
from torch import Tensor

from refrl.algorithms.reductions import check_count


def dpo_loss(
    chosen_logprobs_P: Tensor,
    rejected_logprobs_P: Tensor,
    ref_chosen_logprobs_P: Tensor,
    ref_rejected_logprobs_P: Tensor,
    *,
    beta: float,
    global_num_pairs: Tensor | float,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the share of -mean log sigmoid(beta * margin) over P pairs of whole completions.

    The margin is (chosen - ref_chosen) - (rejected - ref_rejected); see `sequence_logprobs`. DPO, arXiv 2305.18290,
    equation 7. `label_smoothing` is the chance that a pair is labelled the wrong way round (conservative DPO,
    Mitchell 2023, "A note on DPO with noisy preferences").

    Raises:
        ValueError: beta is not positive, the smoothing is not in [0, 0.5), or there are no pairs.
    """
    if not beta > 0 or not 0 <= label_smoothing < 0.5:
        raise ValueError(f"beta={beta} must be positive and label_smoothing={label_smoothing} in [0, 0.5)")
    chosen_P = beta * (chosen_logprobs_P - ref_chosen_logprobs_P.detach())
    rejected_P = beta * (rejected_logprobs_P - ref_rejected_logprobs_P.detach())
    return _pairwise_loss(chosen_P, rejected_P, global_num_pairs, label_smoothing)


def reward_model_loss(
    chosen_scores_P: Tensor, rejected_scores_P: Tensor, *, global_num_pairs: Tensor | float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the share of -mean log sigmoid(chosen - rejected) over P pairs of scores (Bradley-Terry).

    Source: arXiv 1706.03741, equation 1; arXiv 2203.02155, equation 1.

    Raises:
        ValueError: there are no pairs.
    """
    return _pairwise_loss(chosen_scores_P, rejected_scores_P, global_num_pairs, 0.0)


def _pairwise_loss(
    chosen_P: Tensor, rejected_P: Tensor, global_num_pairs: Tensor | float, label_smoothing: float
) -> tuple[Tensor, dict[str, Tensor]]:
    check_count(global_num_pairs, "global_num_pairs")
    margin_P = chosen_P - rejected_P
    losses_P = -(1 - label_smoothing) * torch.nn.functional.logsigmoid(
        margin_P
    ) - label_smoothing * torch.nn.functional.logsigmoid(-margin_P)
    loss = losses_P.sum() / global_num_pairs
    metrics = {
        "loss": loss.detach(),
        "preference_loss": loss.detach(),
        "accuracy": (margin_P > 0).sum() / global_num_pairs,
        "rewards_chosen_mean": chosen_P.detach().sum() / global_num_pairs,
        "rewards_rejected_mean": rejected_P.detach().sum() / global_num_pairs,
        "num_valid_samples": torch.tensor(len(margin_P)),
    }
    return loss, metrics
