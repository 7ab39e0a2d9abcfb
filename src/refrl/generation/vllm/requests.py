"""What vLLM is asked for a completion, and a completion from its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refrl.generation.base import Completion, SamplingParams
from refrl.generation.decoding import finish_reason
from refrl.generation.sampling import filtered_logits, is_filtered

Token = tuple[int, Mapping[int, Any]]
"""An id, and the log-probabilities that vLLM gave at its place, by id."""


def vllm_params(params: SamplingParams, stop_ids: frozenset[int], seed: int) -> Any:
    """Return vLLM's own parameters of one request; tokens come as they are sampled."""
    from vllm import SamplingParams as VllmParams
    from vllm.sampling_params import RequestOutputKind

    # The whole vocabulary, to see which ids the filters kept; vLLM applies neither temperature nor filters when greedy.
    all_ids = params.greedy or params.top_p < 1.0 or params.top_k is not None
    return VllmParams(
        temperature=0.0 if params.greedy else params.temperature,
        top_p=1.0 if params.greedy else params.top_p,
        top_k=0 if params.greedy or params.top_k is None else params.top_k,
        seed=seed,
        max_tokens=params.max_new_tokens,
        stop_token_ids=sorted(stop_ids),
        ignore_eos=True,
        logprobs=-1 if all_ids else 0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def completion(
    prompt: tuple[int, ...],
    tokens: Sequence[Token],
    params: SamplingParams,
    stop_ids: frozenset[int],
    version: int,
) -> Completion:
    """Return a row from its tokens.

    Raises:
        FloatingPointError: the model's logits are not finite.
    """
    ids = tuple(token for token, _ in tokens)
    logprobs = tuple(_logprob(token, place, params) for token, place in tokens)
    if not all(map(_is_finite, logprobs)):
        raise FloatingPointError("the model's logits are not finite: vLLM sampled an id of no probability")
    kept = tuple(
        tuple(sorted(token for token, at in place.items() if _is_finite(at.logprob))) for _, place in tokens
    )
    filtered = bool(tokens) and is_filtered(params, len(tokens[0][1]))
    return Completion(
        prompt_ids=prompt,
        ids=ids,
        logprobs=logprobs,
        finish_reason=finish_reason(ids, params, stop_ids),
        kept_ids=kept if filtered else None,
        weight_version=version,
    )


def _logprob(token: int, place: Mapping[int, Any], params: SamplingParams) -> float:
    """Return the log-probability of an id under the distribution that it is sampled from, or would have been."""
    if not params.greedy:
        return float(place[token].logprob)
    logprobs_V = torch.tensor([place[other].logprob for other in sorted(place)])
    return float(filtered_logits(logprobs_V[None], params).log_softmax(-1)[0, token])


def _is_finite(value: float) -> bool:
    return value > float("-inf")
