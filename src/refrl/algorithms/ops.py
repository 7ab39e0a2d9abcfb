"""Log-probabilities and entropies of completion tokens under a model's logits."""

from __future__ import annotations

import torch
from torch import Tensor


def compute_logprobs(
    logits_BSV: Tensor,
    completion_ids_BT: Tensor,
    prompt_lens_B: Tensor,
    *,
    temperature: float = 1.0,
    mask_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Score completion tokens: log pi(token) and the entropy of the distribution it was drawn from, in nats.

    Token t of row b is predicted by `logits_BSV[b, prompt_lens_B[b] + t - 1] / temperature`. Computed in float32
    (float64 stays), because bfloat16 errs by up to 5 % in the ratio of unlikely tokens.

    Args:
        logits_BSV: logits of the padded rows.
        completion_ids_BT: ids to score.
        prompt_lens_B: position of each row's first completion token.
        temperature: that of sampling.
        mask_BT: where given, positions where it is 0 give exactly 0 in both results, and no gradient.

    Returns:
        (logprobs_BT, entropy_BT).

    Raises:
        ValueError: a temperature that is not positive, shapes that disagree, or a row whose completion does not
            lie within the sequence after at least one token (the message names the row).
    """
    hidden_BTV = gather_predictors(logits_BSV, completion_ids_BT, prompt_lens_B)
    logits_BTV = hidden_BTV.to(torch.promote_types(hidden_BTV.dtype, torch.float32)) / check_temperature(
        temperature
    )
    all_logprobs_BTV = logits_BTV.log_softmax(-1)
    logprobs_BT = all_logprobs_BTV.gather(-1, completion_ids_BT.unsqueeze(-1)).squeeze(-1)
    # A token of probability 0 adds 0, not 0 * -inf.
    entropy_BT = -(
        all_logprobs_BTV.exp() * all_logprobs_BTV.clamp_min(torch.finfo(logits_BTV.dtype).min)
    ).sum(-1)
    return select_valid(logprobs_BT, mask_BT), select_valid(entropy_BT, mask_BT)


def gather_predictors(states_BSX: Tensor, completion_ids_BT: Tensor, prompt_lens_B: Tensor) -> Tensor:
    """Return `states_BTX`: for each completion token the logits (or hidden state) that predicts it.

    Raises:
        ValueError: as `compute_logprobs`.
    """
    B, S = states_BSX.shape[:2]
    T = completion_ids_BT.shape[1]
    if completion_ids_BT.shape[0] != B or prompt_lens_B.shape != (B,):
        raise ValueError(
            f"{B} rows of logits, completion ids {tuple(completion_ids_BT.shape)}, prompt lengths "
            f"{tuple(prompt_lens_B.shape)}: the numbers of rows must agree"
        )
    for row, prompt_len in enumerate(prompt_lens_B.tolist()):
        if prompt_len < 1:
            raise ValueError(
                f"row {row}: prompt length {prompt_len}; the first completion token has no predictor"
            )
        if prompt_len - 1 + T > S:
            raise ValueError(
                f"row {row}: prompt of {prompt_len} and {T} completion tokens pass the {S} positions"
            )
    positions_BT = (prompt_lens_B - 1).unsqueeze(1) + torch.arange(T, device=prompt_lens_B.device)
    rows_B1 = torch.arange(B, device=states_BSX.device).unsqueeze(1)
    return states_BSX[rows_B1, positions_BT.to(states_BSX.device)]


def check_temperature(temperature: float) -> float:
    """Return the temperature.

    Raises:
        ValueError: it is not a positive finite number.
    """
    if not 0 < temperature < float("inf"):
        raise ValueError(
            f"temperature is {temperature}; it must be positive (greedy decoding has no log-probability)"
        )
    return temperature


def select_valid(values_BT: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Return the values where the mask is 1 and exactly 0 elsewhere, whatever stands there (NaN included)."""
    return values_BT if mask_BT is None else torch.where(mask_BT.bool(), values_BT, 0.0)
