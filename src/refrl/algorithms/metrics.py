"""Metrics of the policy loss, under NeMo RL's names, as parts that micro-batches and ranks add up.

c is the current policy, p the old one (before this step's updates), g the sampler. Each part is already divided by a
global count, so the value of a step is the sum of its parts; keys ending in `_min` and `_max` are extrema.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from refrl.algorithms.reductions import token_mean

MEAN_KEYS = frozenset({"global_valid_toks", "global_valid_seqs"})
"""Counts of the whole batch, the same in every part."""


def k3(log_ratio_BT: Tensor) -> Tensor:
    """Return exp(x) - 1 - x of a log-ratio x: the estimate of a KL that is never negative."""
    return torch.expm1(log_ratio_BT) - log_ratio_BT


@torch.no_grad()
def mismatch_metrics(
    old_logprobs_BT: Tensor,
    sampling_logprobs_BT: Tensor,
    mask_BT: Tensor,
    global_valid_tokens: Tensor | float,
) -> dict[str, Tensor]:
    """Return how far sampler and trainer disagree on the tokens sampled (padding already 0).

    token_mult_prob_error: mean exp(|g - p|), 1 when they agree. gen_kl_error: k3 of p - g, the KL(sampler || trainer).
    policy_kl_error: k3 of g - p. js_divergence_error: half the k3 of each against m = log((e^p + e^g) / 2).
    """
    p, g = old_logprobs_BT, sampling_logprobs_BT
    m = torch.logaddexp(p, g) - math.log(2)
    per_token = {
        "token_mult_prob_error": (g - p).abs().exp(),
        "gen_kl_error": k3(p - g),
        "policy_kl_error": k3(g - p),
        "js_divergence_error": (k3(p - m) + k3(g - m)) / 2,
    }
    return {name: token_mean(values, mask_BT, global_valid_tokens) for name, values in per_token.items()}


@torch.no_grad()
def ratio_metrics(
    ratio_BT: Tensor, clamped_ratio_BT: Tensor, mask_BT: Tensor, global_valid_tokens: Tensor | float
) -> dict[str, Tensor]:
    """Return mean, minimum and maximum of the ratio c / p and of its clamped form over valid tokens.

    A micro-batch without valid tokens has the minimum inf and the maximum -inf, which `merge_metrics` leaves out.
    """
    metrics: dict[str, Tensor] = {}
    for name, values_BT in {"probs_ratio": ratio_BT, "probs_ratio_clamped": clamped_ratio_BT}.items():
        metrics[name] = token_mean(values_BT, mask_BT, global_valid_tokens)
        metrics[f"{name}_min"] = torch.where(mask_BT.bool(), values_BT, math.inf).min()
        metrics[f"{name}_max"] = torch.where(mask_BT.bool(), values_BT, -math.inf).max()
    return metrics


@torch.no_grad()
def approx_entropy(
    logprobs_BT: Tensor, sampling_logprobs_BT: Tensor, mask_BT: Tensor, global_valid_tokens: Tensor | float
) -> Tensor:
    """Return -mean(exp(c - g) c): the current policy's entropy, estimated at tokens that the sampler drew."""
    values_BT = -(logprobs_BT - sampling_logprobs_BT).exp() * logprobs_BT
    return token_mean(values_BT, mask_BT, global_valid_tokens)


@torch.no_grad()
def importance_metrics(
    ratio_BT: Tensor, out_of_bounds_BT: Tensor, mask_BT: Tensor, global_valid_tokens: Tensor | float
) -> dict[str, Tensor]:
    """Return the mean of p / g after truncation (not finite counts 0, as in NeMo RL) and the share out of bounds."""
    finite_BT = torch.where(ratio_BT.isfinite(), ratio_BT, 0.0)
    return {
        "sampling_importance_ratio": token_mean(finite_BT, mask_BT, global_valid_tokens),
        "is_oob_ratio": token_mean(out_of_bounds_BT, mask_BT, global_valid_tokens),
    }


def num_valid_samples(mask_BT: Tensor) -> Tensor:
    """Return the number of rows with a valid token."""
    return mask_BT.bool().any(1).sum()


def merge_metrics(parts: Sequence[Mapping[str, Tensor | float]], *, num_updates: int = 1) -> dict[str, float]:
    """Merge the parts of all micro-batches and ranks of a step into one value per name.

    Sums, divided by the number of optimizer updates that the parts cover; for keys with `_min` or `_max` the
    extremum over finite parts (-1.0 where none is); for counts of the whole batch the mean. NeMo RL's rule.

    Raises:
        ValueError: no parts, or parts with different names.
    """
    if not parts:
        raise ValueError("merge_metrics needs at least one part")
    for part in parts:
        if part.keys() != parts[0].keys():
            raise ValueError(f"parts have different metrics: {sorted(part.keys() ^ parts[0].keys())}")
    merged = {}
    for name in parts[0]:
        values = [float(part[name]) for part in parts]
        finite = [value for value in values if math.isfinite(value)]
        if "_min" in name:
            merged[name] = min(finite, default=-1.0)
        elif "_max" in name:
            merged[name] = max(finite, default=-1.0)
        elif name in MEAN_KEYS:
            merged[name] = math.fsum(values) / len(values)
        else:
            merged[name] = sum(values) / num_updates
    return merged
