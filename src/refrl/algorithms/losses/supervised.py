"""The supervised loss of answers, and the log-probabilities of whole completions."""

from __future__ import annotations

from torch import Tensor

from refrl.algorithms.reductions import check_count, select_valid, token_mean


def sft_loss(logprobs_BT: Tensor, mask_BT: Tensor, *, global_valid_tokens: Tensor | float) -> Tensor:
    """Return the share of the mean negative log-likelihood of the valid tokens.

    Raises:
        ValueError: the global count is 0.
    """
    return -token_mean(logprobs_BT, mask_BT, check_count(global_valid_tokens, "global_valid_tokens"))


def sequence_logprobs(logprobs_BT: Tensor, mask_BT: Tensor, *, average: bool = False) -> Tensor:
    """Return the log-probability of each completion: the sum over its valid tokens, or their mean."""
    sums_B = select_valid(logprobs_BT, mask_BT).sum(1)
    return sums_B / mask_BT.bool().sum(1).clamp_min(1) if average else sums_B
