"""R26: samples repeat with the same seed, differ otherwise, and come with the probability they were drawn with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation
from seatrial.relations.worst import largest


@dataclass(frozen=True, kw_only=True)
class PromptsCase(Case):
    """Prompts of unequal length, one of them repeated."""

    prompts: tuple[tuple[int, ...], ...]
    max_new_tokens: int
    temperature: float
    seed: int

    def smaller(self) -> Iterator[PromptsCase]:
        """Yield fewer prompts and shorter completions."""
        if len(self.prompts) > 2:
            yield replace(self, prompts=self.prompts[: len(self.prompts) // 2])
        if self.max_new_tokens > 2:
            yield replace(self, max_new_tokens=self.max_new_tokens // 2)

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values."""
        return {**vars(self), "prompts": [list(prompt) for prompt in self.prompts]}


def _make(stack: Any, seed: int, tidy: bool) -> PromptsCase:
    rng = np.random.default_rng([seed, 26])
    lengths = [4] * 3 if tidy else [1, 7, 3, 12]
    prompts = [
        tuple(int(token) for token in rng.integers(3, stack.vocab_size, size=length)) for length in lengths
    ]
    return PromptsCase(
        prompts=(*prompts, *prompts[:1] * 5), max_new_tokens=12, temperature=1.0 if tidy else 1.3, seed=seed
    )


def _sample(stack: Any, case: PromptsCase, **changes: Any) -> list[Any]:
    options = {
        "max_new_tokens": case.max_new_tokens,
        "temperature": case.temperature,
        "seed": case.seed,
        **changes,
    }
    sampled: list[Any] = stack.sample(case.prompts, **options)
    return sampled


def _scores_nothing(stack: Any) -> str | None:
    return None if hasattr(stack, "score") else "the stack offers no policy"


SAMPLER = Relation(
    id="R26.sampler",
    name="samples-follow-the-seed",
    component="sampler",
    statement="The same seed repeats samples, other seeds give others, and reported log-probabilities are exact.",
    catalogue="SB038 SB039 SB040 SB051 SB056 SB061 SB311 SB312",
    cost="CPU, seconds",
    cases=_make,
)


@SAMPLER.law("same seed", "a random stream shared with other code", seeded=False)
def same_seed_repeats(stack: Any, case: PromptsCase) -> Measure:
    first, second = (_sample(stack, case) for _ in range(2))
    wrong = sum(a.ids != b.ids for a, b in zip(first, second, strict=True))
    return Measure(error=float(wrong), bound=0, what="completions that differ under the same seed")


@SAMPLER.law("other seed", "a fixed seed on every request", seeded=False)
def seeds_differ(stack: Any, case: PromptsCase) -> Measure:
    first, second = _sample(stack, case), _sample(stack, case, seed=case.seed + 1)
    same = all(a.ids == b.ids for a, b in zip(first, second, strict=True))
    return Measure(
        error=float(same), bound=0, what="whether another seed gave the same completions (1: it did)"
    )


@SAMPLER.law("samples of a prompt", "the same seed for every sample, greedy decoding left on", seeded=False)
def samples_of_a_prompt_differ(stack: Any, case: PromptsCase) -> Measure:
    """Several samples of one prompt are not all the same completion."""
    prompt = case.prompts[0]
    sampled = stack.sample(
        [prompt] * 8, max_new_tokens=case.max_new_tokens, temperature=case.temperature, seed=case.seed
    )
    distinct = len({row.ids for row in sampled})
    return Measure(
        error=float(distinct == 1),
        bound=0,
        what=f"{distinct} distinct completions of 8 (1: all are the same)",
    )


@SAMPLER.law(
    "order and lengths",
    "results returned in completion order, forced tokens without a log-probability",
    seeded=False,
)
def order_and_lengths(stack: Any, case: PromptsCase) -> Measure:
    """There is one completion per prompt, in the order of the prompts, with one log-probability per token."""
    sampled = _sample(stack, case)
    wrong = sum(tuple(row.prompt_ids) != prompt for row, prompt in zip(sampled, case.prompts, strict=False))
    wrong += abs(len(sampled) - len(case.prompts))
    wrong += sum(
        len(row.ids) != len(row.logprobs) or not 1 <= len(row.ids) <= case.max_new_tokens for row in sampled
    )
    return Measure(
        error=float(wrong),
        bound=0,
        what="completions in another order, of another number, or with missing log-probabilities",
    )


@SAMPLER.law(
    "log-probabilities are those of the trainer",
    "temperature applied on one side only, filtered distribution compared with the full one, attention to padding",
    excluded=_scores_nothing,
)
def logprobs_are_probabilities(stack: Any, case: PromptsCase) -> Measure:
    """The sampler's log-probability of each token equals the policy's score at the same temperature."""
    from seatrial.relations.records import Row

    sampled = _sample(stack, case)
    rows = [
        Row(
            prompt_ids=tuple(row.prompt_ids),
            completion_ids=tuple(row.ids),
            completion_mask=(1,) * len(row.ids),
            prompt_id=0,
            reward=0.0,
            advantage=0.0,
            sampling_logprobs=tuple(row.logprobs),
            old_logprobs=tuple(row.logprobs),
            ref_logprobs=tuple(row.logprobs),
        )
        for row in sampled
    ]
    worst = 0.0
    for row, scores in zip(rows, stack.score(rows, case.temperature), strict=True):
        for one, other in zip(row.sampling_logprobs, scores, strict=True):
            worst = largest((worst, abs(one - other)))
    return Measure(
        error=worst,
        bound=1e-4,
        what="difference between sampler's and trainer's log-probability of a sampled token",
    )


@SAMPLER.law("filters", "top_k ignored, log-probabilities returned without filters", seeded=False)
def filters_are_applied(stack: Any, case: PromptsCase) -> Measure:
    """With top_k=1 every copy of a prompt gets the same completion, with probability 1."""
    sampled = _sample(stack, case, top_k=1)
    copies = {row.ids for row, prompt in zip(sampled, case.prompts, strict=True) if prompt == case.prompts[0]}
    off = largest(abs(value) for row in sampled for value in row.logprobs)
    return Measure(
        error=math.inf if len(copies) != 1 else off,
        bound=1e-5,
        what="top_k=1: |log-probability| (inf: copies differ)",
    )
