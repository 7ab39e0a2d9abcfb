"""Completions of several turns: the model samples, the environment answers, the model continues.

The environment's text is part of the sequence, is not trained on (mask 0), and counts towards its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedTokenizerBase

from refrl.generation.base import Completion, Sampler, SamplingParams
from refrl.generation.pool import join
from refrl.models.tokenization import decode_completions, encode_answers
from refrl.rollout.environments import Environment
from refrl.streams import random_stream


def take_turns(
    sampler: Sampler,
    environment: Environment,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    stream: torch.Generator,
) -> list[Completion]:
    """Sample one episode per prompt, in the order of the prompts.

    Args:
        sampler: samples a turn of several rows.
        environment: answers a turn that ended by itself; no answer, an answer that does not fit, or a turn that
            reached the length limit ends the episode.
        tokenizer: of the model; makes ids of the environment's words.
        prompts: ids.
        params: `max_new_tokens` bounds the whole episode, the environment's words included.
        stream: of the first turn; those after draw streams of their own, derived from its seed.
    """
    episodes = sampler.generate(prompts, params, stream)
    turns = [[text] for text in decode_completions(tokenizer, [episode.ids for episode in episodes])]
    seed = stream.initial_seed()
    under_way = list(range(len(episodes)))
    for number in range(1, environment.max_turns):
        answered: dict[int, Completion] = {}
        for row in under_way:
            words = environment.respond(turns[row]) if episodes[row].finish_reason == "stop" else None
            if words is not None:
                episode = _with_words(episodes[row], tokenizer, words)
                if len(episode.ids) < params.max_new_tokens:
                    answered[row] = episode
        for row, rest in _next_turns(sampler, answered, params, random_stream(seed, "turn", number)).items():
            episodes[row] = join(answered[row], rest)
            turns[row].append(decode_completions(tokenizer, [rest.ids])[0])
        if not answered:
            break
        under_way = [*answered]  # an episode that is over is not asked about again
    return episodes


def _with_words(episode: Completion, tokenizer: PreTrainedTokenizerBase, words: str) -> Completion:
    """Return an episode followed by the environment's text, in which no special token counts."""
    (ids,) = encode_answers(tokenizer, [words])
    mask = (1,) * len(episode.ids) if episode.mask is None else episode.mask
    return replace(
        episode,
        ids=episode.ids + ids,
        logprobs=episode.logprobs + (0.0,) * len(ids),
        kept_ids=None if episode.kept_ids is None else episode.kept_ids + ((),) * len(ids),
        mask=mask + (0,) * len(ids),
    )


def _next_turns(
    sampler: Sampler, answered: dict[int, Completion], params: SamplingParams, stream: torch.Generator
) -> dict[int, Completion]:
    """Sample the next turn of each row; rows of equal length are sampled together."""
    rests: dict[int, Completion] = {}
    for length in sorted({len(episode.ids) for episode in answered.values()}):
        rows = [row for row, episode in answered.items() if len(episode.ids) == length]
        prompts = [(*answered[row].prompt_ids, *answered[row].ids) for row in rows]
        left = replace(params, max_new_tokens=params.max_new_tokens - length)
        # A stream of its own for each length: two calls must not draw the same numbers.
        own = random_stream(stream.initial_seed(), "length", length)
        rests.update(zip(rows, sampler.generate(prompts, left, own), strict=True))
    return rests
