"""Sums over valid tokens that divide by GLOBAL counts, so that shares of micro-batches and ranks add up.

A mean per micro-batch weighs a token by its neighbours; every reduction here divides by a count of the whole
batch, which the caller sums over micro-batches and ranks first.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["token", "sequence", "fixed_length"]


def select_valid(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the values where the mask is 1 and 0 elsewhere, even if a masked value is NaN.

    Selected, never multiplied: NaN * 0 is NaN. Applied to the inputs of a formula as well as to its result, it keeps
    padding values out of the gradient too, where inf * 0 would reappear.
    """
    return torch.where(mask_BT.bool(), values_BT, 0.0)


def check_count(count: Tensor | float, name: str) -> Tensor | float:
    """Return a global count.

    Raises:
        ValueError: it is not positive; then there is nothing to train on, and a loss of 0 would hide that.
    """
    if not count > 0:
        raise ValueError(f"{name} is {float(count)}: the batch has no tokens or rows to train on")
    return count


def token_mean(values_BT: Tensor, mask_BT: Tensor, global_valid_tokens: Tensor | float) -> Tensor:
    """Return this micro-batch's share of the mean over all valid tokens (DAPO, arXiv 2503.14476, equation 8)."""
    return select_valid(values_BT, mask_BT).sum() / global_valid_tokens


def sequence_mean(values_BT: Tensor, mask_BT: Tensor, global_valid_seqs: Tensor | float) -> Tensor:
    """Return this micro-batch's share of the mean over sequences of each sequence's own mean.

    GRPO (arXiv 2402.03300, equation 3). A row without valid tokens adds 0.
    """
    row_sum_B = select_valid(values_BT, mask_BT).sum(1)
    row_tokens_B = mask_BT.bool().sum(1)
    return (row_sum_B / row_tokens_B.clamp_min(1)).sum() / global_valid_seqs


def fixed_length_mean(
    values_BT: Tensor, mask_BT: Tensor, global_valid_seqs: Tensor | float, length: int
) -> Tensor:
    """Return this micro-batch's share of the mean over sequences of each sequence's sum over a constant.

    Dr. GRPO (arXiv 2503.20783, section 3): the constant takes the length of a completion out of its weight.
    """
    return select_valid(values_BT, mask_BT).sum() / length / global_valid_seqs


def reduce_tokens(
    values_BT: Tensor,
    mask_BT: Tensor,
    reduction: Reduction,
    *,
    global_valid_tokens: Tensor | float,
    global_valid_seqs: Tensor | float,
    fixed_length: int | None = None,
) -> Tensor:
    """Reduce by name.

    Raises:
        ValueError: an unknown reduction, or `fixed_length` without its length.
    """
    if reduction == "token":
        return token_mean(values_BT, mask_BT, global_valid_tokens)
    if reduction == "sequence":
        return sequence_mean(values_BT, mask_BT, global_valid_seqs)
    if reduction == "fixed_length" and fixed_length:
        return fixed_length_mean(values_BT, mask_BT, global_valid_seqs, fixed_length)
    raise ValueError(
        f"reduction {reduction!r} with fixed_length={fixed_length} is none of token, sequence, fixed_length"
    )
