"""Sampling of one token per row: filters, exact log-probabilities, and a random stream of each row's own.

Pure functions on tensors. Shapes: B rows, V vocabulary, T new tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from refrl.config import ConfigError
from refrl.generation.base import SamplingParams


def row_uniforms(num_rows: int, num_tokens: int, generator: torch.Generator) -> torch.Tensor:
    """Draw the random numbers of every row before the first token.

    Row b is seeded by the b-th number drawn from `generator`, so its stream depends on neither the other rows
    nor `num_tokens`: a longer stream starts with the shorter one.

    Returns:
        uniforms_BT in [0, 1), float64, on the CPU.
    """
    seeds = row_seeds(num_rows, generator)
    uniforms_BT = torch.empty(num_rows, num_tokens, dtype=torch.float64)
    stream = torch.Generator()
    for row_T, seed in zip(uniforms_BT, seeds, strict=True):
        row_T.uniform_(generator=stream.manual_seed(seed))
    return uniforms_BT


def skip_rows(num_rows: int, generator: torch.Generator) -> None:
    """Leave the streams of so many rows to another process: the next row drawn is the one after them."""
    row_seeds(num_rows, generator)


def row_seeds(num_rows: int, generator: torch.Generator) -> list[int]:
    """Draw the seed of each row's stream."""
    return torch.randint(2**63 - 1, (num_rows,), generator=generator, device=generator.device).tolist()


def check_stop_ids(stop_ids: Iterable[int], vocab_size: int) -> None:
    """Hold the ids that are to end a completion against the vocabulary: one that cannot be sampled ends nothing.

    Raises:
        ConfigError: names the ids outside it.
    """
    unknown = sorted({stop_id for stop_id in stop_ids if not 0 <= stop_id < vocab_size})
    if unknown:
        raise ConfigError(
            f"policy.generation.stop_token_ids: {', '.join(map(str, unknown))} outside the vocabulary of {vocab_size}, "
            f"so that no completion ever ends there; give ids from 0 to {vocab_size - 1}, or leave it out for the "
            "model's own end tokens"
        )


def is_filtered(params: SamplingParams, vocab_size: int) -> bool:
    """Return whether tokens are drawn from a part of the vocabulary."""
    return not params.greedy and (
        params.top_p < 1.0 or (params.top_k is not None and params.top_k < vocab_size)
    )


def filtered_logits(logits_BV: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Return the logits of the distribution sampled from: temperature, then top-k, then top-p.

    Returns:
        logits_BV in float32; -inf for a token that is filtered out.
    """
    logits_BV = logits_BV.float()
    if params.temperature != 1.0:
        logits_BV = logits_BV / params.temperature
    if params.top_k is not None and params.top_k < logits_BV.shape[-1]:
        logits_BV = _keep_top_k(logits_BV, params.top_k)
    if params.top_p < 1.0:
        logits_BV = _keep_top_p(logits_BV, params.top_p)
    return logits_BV


def invert_cdf(probs_BV: torch.Tensor, uniforms_B: torch.Tensor) -> torch.Tensor:
    """Find the token of each row at which the cumulative probability passes the row's uniform number.

    The sum runs in float64, so that rare tokens of a large vocabulary keep their probability. A token of
    probability zero is never taken. A row of NaN gives an arbitrary valid id: its log-probability shows it.

    Returns:
        ids_B, long.
    """
    last = probs_BV.shape[-1] - 1
    cumulative_BV = probs_BV.cumsum(dim=-1, dtype=torch.float64)
    targets_B = uniforms_B * cumulative_BV.select(-1, last)
    return torch.searchsorted(cumulative_BV, targets_B.unsqueeze(-1), right=True).squeeze(-1).clamp_(max=last)


class Drawn(NamedTuple):
    """One token of each row."""

    ids_B: torch.Tensor
    logprobs_B: torch.Tensor
    """Float32, under the distribution sampled from."""
    kept_BV: torch.Tensor | None
    """Booleans: the ids that the filters kept; None where none is on."""


def draw(logits_BV: torch.Tensor, uniforms_B: torch.Tensor, params: SamplingParams) -> Drawn:
    """Take one token per row."""
    logits_BV = filtered_logits(logits_BV, params)
    probs_BV = torch.softmax(logits_BV, dim=-1)
    ids_B = logits_BV.argmax(dim=-1) if params.greedy else invert_cdf(probs_BV, uniforms_B)
    kept_BV = logits_BV > float("-inf") if is_filtered(params, logits_BV.shape[-1]) else None
    return Drawn(ids_B, probs_BV.gather(-1, ids_B.unsqueeze(-1)).squeeze(-1).log_(), kept_BV)


def _keep_top_k(logits_BV: torch.Tensor, top_k: int) -> torch.Tensor:
    """Keep the k largest logits and all that tie with the k-th, independent of their ids."""
    kth_B1 = logits_BV.topk(top_k, dim=-1).values[:, -1:]
    return logits_BV.masked_fill(logits_BV < kth_B1, float("-inf"))


def _keep_top_p(logits_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep each token before which, in order of probability then id, less than `top_p` has gathered."""
    sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    probs_BV = torch.softmax(sorted_BV, dim=-1, dtype=torch.float64)
    mass_before_BV = probs_BV.cumsum(dim=-1) - probs_BV
    drop_BV = mass_before_BV >= top_p
    drop_BV[:, 0] = False
    return logits_BV.masked_fill(torch.zeros_like(drop_BV).scatter_(-1, order_BV, drop_BV), float("-inf"))


def check_prompts(
    rows: Sequence[Sequence[int]], *, vocab_size: int, limit: int | None, max_new_tokens: int
) -> None:
    """Refuse prompts that cannot be continued.

    Args:
        rows: ids of each prompt.
        vocab_size: ids below it are known.
        limit: positions of the model, or of its cache; None: it has no bound.
        max_new_tokens: that a completion may have.

    Raises:
        ValueError: a prompt is empty or holds an id outside the vocabulary.
        ConfigError: a prompt is too long for a completion to follow.
    """
    for number, row in enumerate(rows):
        if not row:
            raise ValueError(f"prompt {number} is empty: a completion needs at least one token to follow")
        unknown = next((token for token in row if not 0 <= token < vocab_size), None)
        if unknown is not None:
            raise ValueError(f"prompt {number} holds id {unknown}, outside the vocabulary of {vocab_size}")
        if limit is not None and len(row) + max_new_tokens > limit:
            raise ConfigError(
                f"prompt {number} has {len(row)} tokens; with policy.generation.max_new_tokens="
                f"{max_new_tokens} it exceeds the model's {limit} positions: shorten the prompt or lower "
                "max_new_tokens"
            )
