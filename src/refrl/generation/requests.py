"""Requests to a pool of engines and their results: rows of prompts, and completions that may be continued.

An aborted completion is continued by reading prompt and sampled tokens again with the engine's current weights: the
key/value cache is never that of older weights. Its segments record the weight version of each token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from refrl.generation.base import Completion, FinishReason, Sampler, SamplingParams
from refrl.generation.sampling import skip_rows
from refrl.streams import random_stream


@dataclass(frozen=True)
class GenerationRequest:
    """Some rows of a batch."""

    prompts: tuple[tuple[int, ...], ...]
    params: SamplingParams
    seed: int
    """Of the batch: its rows draw the streams that they would draw in one call for the whole batch."""
    first_row: int
    """Place of the first of these rows in the batch."""
    partial: tuple[Completion, ...] = ()
    """What was sampled before it was given up, row by row; nothing at first."""
    num_parts: int = 0
    """How often it was given up."""


@dataclass(frozen=True)
class GenerationReply:
    """Completions of a request, in its order."""

    completions: tuple[Completion, ...]

    @property
    def finish_reason(self) -> FinishReason:
        """`abort` where any row was given up."""
        reasons = {completion.finish_reason for completion in self.completions}
        return "abort" if "abort" in reasons else "stop"


def carry_on(request: GenerationRequest, reply: GenerationReply) -> GenerationRequest:
    """Return the request for what is missing."""
    return replace(request, partial=reply.completions, num_parts=request.num_parts + 1)


def answer(engine: Sampler, request: GenerationRequest) -> GenerationReply:
    """Sample the rows of a request, or what is missing of them.

    Raises:
        ValueError, refrl.config.ConfigError, FloatingPointError: as `refrl.generation.base.Sampler.generate`.
    """
    if not request.partial:
        stream = torch.Generator().manual_seed(request.seed)
        skip_rows(request.first_row, stream)
        return GenerationReply(tuple(engine.generate(request.prompts, request.params, stream)))
    stream = random_stream(request.seed, f"row {request.first_row}, part", request.num_parts)
    given_up = [row for row, part in enumerate(request.partial) if part.finish_reason == "abort"]
    completions = list(request.partial)
    # Rows of one length go together: those that are given up have as many tokens as the call had sampled.
    for length in sorted({len(completions[row].ids) for row in given_up}):
        rows = [row for row in given_up if len(completions[row].ids) == length]
        rests = engine.generate(
            [(*completions[row].prompt_ids, *completions[row].ids) for row in rows],
            replace(request.params, max_new_tokens=request.params.max_new_tokens - length),
            stream,
        )
        for row, rest in zip(rows, rests, strict=True):
            completions[row] = join(completions[row], rest)
    return GenerationReply(tuple(completions))


def join(part: Completion, rest: Completion) -> Completion:
    """Return a completion and its continuation as one."""
    place = len(part.ids)
    segments = list(part.version_segments or ((0, part.weight_version),))
    for first, version in rest.version_segments or ((0, rest.weight_version),):
        if version != segments[-1][1]:
            segments.append((place + first, version))
    kept_ids = None
    if part.kept_ids is not None and rest.kept_ids is not None:
        kept_ids = part.kept_ids + rest.kept_ids
    mask = None
    if part.mask is not None or rest.mask is not None:
        mask = (part.mask or (1,) * place) + (rest.mask or (1,) * len(rest.ids))
    return Completion(
        prompt_ids=part.prompt_ids,
        ids=part.ids + rest.ids,
        logprobs=part.logprobs + rest.logprobs,
        finish_reason=rest.finish_reason,
        kept_ids=kept_ids,
        weight_version=part.weight_version,
        version_segments=tuple(segments) if len(segments) > 1 else (),
        mask=mask,
    )
