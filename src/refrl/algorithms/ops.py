"""Log-probabilities and entropies of completion tokens under a model's logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from refrl.algorithms.kept_ids import KeptIds, Support


def compute_logprobs(
    logits_BSV: Tensor,
    completion_ids_BT: Tensor,
    prompt_lens_B: Tensor,
    *,
    temperature: float = 1.0,
    mask_BT: Tensor | None = None,
    kept_ids: KeptIds | None = None,
) -> tuple[Tensor, Tensor]:
    """Score completion tokens: log pi(token) and the entropy of the distribution it was drawn from, in nats.

    Token t of row b is predicted by `logits_BSV[b, prompt_lens_B[b] + t - 1] / temperature`. Computed in float32
    (float64 stays): in bfloat16 the ratio of an unlikely token to itself is off by up to 5 %.

    Args:
        logits_BSV: logits of the padded rows.
        completion_ids_BT: ids to score.
        prompt_lens_B: position of each row's first completion token.
        temperature: that of sampling.
        mask_BT: where it is 0 both results are exactly 0, and the logits there are not read: they may be NaN, and
            get the gradient 0. None scores every position, padding included.
        kept_ids: what the filter of sampling kept; the softmax, after the temperature, then runs over these ids
            only, an id outside them has log-probability -inf, and logits of the others get the gradient 0.

    Returns:
        (logprobs_BT, entropy_BT).

    Raises:
        ValueError: a temperature that is not positive, shapes that disagree, an id outside the vocabulary, or a row
            whose completion does not lie within the sequence after at least one token (the message names the row).
    """
    check_temperature(temperature)
    B, S, V = logits_BSV.shape
    index_BT = predictor_index(prompt_lens_B, completion_ids_BT, B, S)
    valid_BT = valid_positions(completion_ids_BT, mask_BT)
    ids_N = checked_ids(completion_ids_BT[valid_BT], V)
    logits_NV = logits_BSV.reshape(B * S, V)[index_BT[valid_BT]]
    support = support_at(kept_ids, valid_BT, V)
    logprobs_N, entropy_N = score(logits_NV, ids_N, temperature, support)
    return scatter(logprobs_N, valid_BT), scatter(entropy_N, valid_BT)


def score(
    logits_NV: Tensor, ids_N: Tensor, temperature: float, support: Support | None = None
) -> tuple[Tensor, Tensor]:
    """Return log-softmax(logits / temperature) at the ids, and the entropy of each of the N distributions.

    With a support, both are those of the distributions restricted to it.
    """
    scaled_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32)) / temperature
    if support is not None:
        N, V = scaled_NV.shape
        scaled_NV.masked_fill_(support.excluded(slice(0, N), slice(0, V)), -torch.inf)
    all_logprobs_NV = scaled_NV.log_softmax(-1)
    logprobs_N = all_logprobs_NV.gather(-1, ids_N.unsqueeze(-1)).squeeze(-1)
    # A token of probability 0 adds 0, and not 0 * -inf; nor 0 * a number that a gradient above 1 makes infinite.
    finite_NV = all_logprobs_NV.masked_fill(all_logprobs_NV == -torch.inf, 0.0)
    return logprobs_N, -(all_logprobs_NV.exp() * finite_NV).sum(-1)


def predictor_index(
    prompt_lens_B: Tensor, completion_ids_BT: Tensor, num_rows: int, num_positions: int
) -> Tensor:
    """Return for each completion token the index, into the flattened rows, of the position that predicts it.

    A flat index that passes a row's end would read the next row's first logits without a word; so each row is checked.

    Raises:
        ValueError: as `compute_logprobs`.
    """
    B, T = completion_ids_BT.shape
    if num_rows != B or prompt_lens_B.shape != (B,):
        raise ValueError(
            f"{num_rows} rows of logits, completion ids {(B, T)} and prompt lengths {tuple(prompt_lens_B.shape)}: "
            "the numbers of rows must agree"
        )
    for row, prompt_len in enumerate(prompt_lens_B.tolist()):
        if prompt_len < 1:
            raise ValueError(
                f"row {row}: prompt length {prompt_len}: the first completion token has no predictor"
            )
        if prompt_len - 1 + T > num_positions:
            raise ValueError(
                f"row {row}: a prompt of {prompt_len} and {T} completion tokens pass the {num_positions} positions"
            )
    first_B = torch.arange(B, device=prompt_lens_B.device) * num_positions + prompt_lens_B - 1
    return first_B.unsqueeze(1) + torch.arange(T, device=prompt_lens_B.device)


def valid_positions(completion_ids_BT: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Return the mask as booleans, all true where it is None.

    Raises:
        ValueError: its shape is not that of the ids.
    """
    if mask_BT is None:
        return torch.ones_like(completion_ids_BT, dtype=torch.bool)
    if mask_BT.shape != completion_ids_BT.shape:
        raise ValueError(
            f"mask {tuple(mask_BT.shape)} and ids {tuple(completion_ids_BT.shape)} must have one shape"
        )
    return mask_BT.bool()


def checked_ids(ids_N: Tensor, vocab_size: int) -> Tensor:
    """Return the ids.

    Raises:
        ValueError: an id is outside the vocabulary.
    """
    bad_N = ids_N[(ids_N < 0) | (ids_N >= vocab_size)]
    if len(bad_N):
        raise ValueError(f"token id {int(bad_N[0])} is outside the vocabulary of {vocab_size}")
    return ids_N


def support_at(kept_ids: KeptIds | None, valid_BT: Tensor, vocab_size: int) -> Support | None:
    """Return the supports of the valid positions; None where no filter was on.

    Raises:
        ValueError: a kept id is outside the vocabulary.
    """
    if kept_ids is None:
        return None
    support = kept_ids.at(valid_BT)
    checked_ids(support.ids_M, vocab_size)
    return support


def scatter(values_N: Tensor, valid_BT: Tensor) -> Tensor:
    """Put the values of valid positions back in their places; 0 elsewhere."""
    return values_N.new_zeros(valid_BT.shape).masked_scatter(valid_BT, values_N)


def check_temperature(temperature: float) -> None:
    """Check a sampling temperature.

    Raises:
        ValueError: it is not a positive finite number.
    """
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(
            f"temperature is {temperature}: it must be positive; greedy choices have no log-probability"
        )
