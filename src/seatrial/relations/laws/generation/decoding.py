"""R26.decoding: options of generation make of the model's logits what they say, and the ids follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from seatrial.relations.contracts.decoding import Decoded, DecodingPlan
from seatrial.relations.law import Measure, Relation
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.decoding import probabilities

BOUND = 1e-4
"""Of probabilities: float32 logits of tens, exponentiated."""
NUM_DRAWS = 3000
STANDARD_ERRORS = 6.0


def prompts(stack: Any, seed: int, lengths: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return prompts of these lengths, of ids that are neither the end nor padding; an id repeats."""
    rng = np.random.default_rng([seed, 26])
    drawn = [rng.integers(3, stack.vocab_size, size=size).tolist() for size in lengths]
    return tuple((*own[:-1], own[0]) if len(own) > 2 else tuple(own) for own in drawn)


def plan(
    *, lengths: tuple[int, ...] = (5, 5), num_new: int = 6, ends: bool = True, **options: Any
) -> Callable[..., DecodingPlan]:
    """Return a law's `cases`: a plan with these options."""

    def make(stack: Any, seed: int, tidy: bool) -> DecodingPlan:
        return DecodingPlan(
            prompts=prompts(stack, seed, lengths), options=options, num_new=num_new, ends=ends, seed=seed
        )

    return make


def sampled(**options: Any) -> Callable[..., DecodingPlan]:
    """Return a law's `cases`: a plan that samples, whose cuts are these alone."""
    return plan(do_sample=True, **{"top_k": 0, **options})


def ending(**options: Any) -> Callable[..., DecodingPlan]:
    """Return a law's `cases`: a plan whose rows end at different places, as the end is likely."""

    def make(stack: Any, seed: int, tidy: bool) -> DecodingPlan:
        likely = {"sequence_bias": [[[stack.end_id], 4.0]]}
        drawn = {"do_sample": True, "top_k": 0, "temperature": 2.0, "num_return_sequences": 4}
        return plan(lengths=(3, 7, 5), num_new=8, **{**drawn, **likely, **options})(stack, seed, tidy)

    return make


GREEDY = plan(do_sample=False)
DECODING = Relation(
    id="R26.decoding",
    name="generation-follows-its-options",
    component="decoding",
    statement="The distribution of each id is that of the options on the model's logits; ids, ends, limits and scores "
    "of beams follow from it.",
    cost="CPU, seconds",
    cases=GREEDY,
)
OTHER = "an option that is ignored, or applied to other ids or in another order"


@DECODING.law("temperature", OTHER, cases=sampled(temperature=0.6))
@DECODING.law("top_k", OTHER, cases=sampled(top_k=5))
@DECODING.law("top_p", OTHER, cases=sampled(top_p=0.7))
@DECODING.law("min_p", OTHER, cases=sampled(min_p=0.1))
@DECODING.law("typical_p", OTHER, cases=sampled(typical_p=0.6))
@DECODING.law("epsilon_cutoff", OTHER, cases=sampled(epsilon_cutoff=0.02))
@DECODING.law("eta_cutoff", OTHER, cases=sampled(eta_cutoff=0.2))
@DECODING.law("temperature and two cuts", OTHER, cases=sampled(temperature=1.4, top_k=12, top_p=0.8))
@DECODING.law("repetition_penalty", OTHER, cases=plan(do_sample=False, repetition_penalty=1.8))
@DECODING.law("no_repeat_ngram_size", OTHER, cases=plan(do_sample=False, no_repeat_ngram_size=2))
@DECODING.law("suppress_tokens", OTHER, cases=plan(do_sample=False, suppress_tokens=[3, 11, 29]))
@DECODING.law("begin_suppress_tokens", OTHER, cases=plan(do_sample=False, begin_suppress_tokens=[4, 17]))
@DECODING.law("bad_words_ids", OTHER, cases=plan(do_sample=False, bad_words_ids=[[5], [7, 9]]))
@DECODING.law(
    "sequence_bias", OTHER, cases=plan(do_sample=False, sequence_bias={(5,): -3.0, (8,): 4.0, (8, 9): 6.0})
)
@DECODING.law("min_new_tokens", OTHER, cases=plan(do_sample=False, min_new_tokens=4))
@DECODING.law("min_length", OTHER, cases=plan(do_sample=False, min_length=8))
@DECODING.law(
    "forced_eos_token_id", OTHER, cases=plan(do_sample=False, forced_eos_token_id=1, min_new_tokens=5)
)
@DECODING.law(
    "exponential_decay_length_penalty",
    OTHER,
    cases=plan(do_sample=False, exponential_decay_length_penalty=(2, 1.4)),
)
@DECODING.law(
    "penalties and cuts together",
    OTHER,
    cases=sampled(temperature=0.8, top_p=0.9, repetition_penalty=1.3, suppress_tokens=[3], min_new_tokens=3),
)
def distribution_is_of_the_options(stack: Any, case: DecodingPlan) -> Measure:
    """Compare the probabilities of each step's scores with the options' rules on its raw logits."""
    found = []
    for number, one in enumerate(stack.decoded(case)):
        for place, (logits_V, scores_V) in enumerate(zip(one.logits, one.scores, strict=True)):
            if stack.end_id in one.ids[:place]:
                break
            step = {
                "ids": (*one.prompt_ids, *one.ids[:place]),
                "num_prompt": len(one.prompt_ids),
                "num_new": case.num_new,
                "end": stack.end_id,
            }
            right_V = probabilities(logits_V, case.options, step)
            error_V = (scores_V.double().softmax(0) - right_V).abs()
            found.append(
                (float(error_V.max()), f"completion {number}, id {place + 1}, token {int(error_V.argmax())}")
            )
    return Measure.largest(
        found, BOUND, "probabilities of the next id against those of the options, difference"
    )


@DECODING.law("logits of a step", "a cache, mask or position of another step", cases=plan(lengths=(3, 7, 5)))
@DECODING.law(
    "logits of a step, after rows that ended",
    "padding of other rows in a cache or a mask",
    cases=ending(),
    thorough=True,
)
def logits_are_of_the_row(stack: Any, case: DecodingPlan) -> Measure:
    """Compare the raw logits of each step, prompts padded on the left, with those of the row computed at once."""
    found = []
    for number, one in enumerate(stack.decoded(case)):
        length = completed(stack, one)
        whole = stack.next_logits((*one.prompt_ids, *one.ids[:length]))
        for place in range(length):
            right_V = whole[len(one.prompt_ids) + place - 1].double()
            error = (one.logits[place].double() - right_V).abs().max() / right_V.abs().max()
            found.append((float(error), f"completion {number}, id {place + 1}"))
    return Measure.largest(found, 5e-4, "raw logits against those of the whole row, relative")


@DECODING.law("greedy ids", "a sampled id, the largest raw logit in place of the largest score")
@DECODING.law(
    "greedy ids, a penalty", "the largest raw logit", cases=plan(do_sample=False, repetition_penalty=1.8)
)
def greedy_ids_have_the_largest_score(stack: Any, case: DecodingPlan) -> Measure:
    """Check that every id has the largest score of its step."""
    wrong = [
        f"completion {number}, id {place + 1}: {one.ids[place]}, not {int(one.scores[place].argmax())}"
        for number, one in enumerate(stack.decoded(case))
        for place in range(completed(stack, one))
        if float(one.scores[place][one.ids[place]]) < float(one.scores[place].max())
    ]
    return Measure.count(wrong, "ids without the largest score")


@DECODING.law(
    "frequencies of sampled ids",
    "draws of another distribution, or the same for every row",
    cases=plan(
        lengths=(5,), num_new=1, do_sample=True, temperature=1.3, top_k=8, num_return_sequences=NUM_DRAWS
    ),
)
def ids_are_drawn_as_often(stack: Any, case: DecodingPlan) -> Measure:
    """Compare how often each id is drawn with its probability, in standard errors."""
    decoded = stack.decoded(case)
    probs_V = decoded[0].scores[0].double().softmax(0)
    counts_V = torch.bincount(torch.tensor([one.ids[0] for one in decoded]), minlength=len(probs_V))
    errors_V = (counts_V - len(decoded) * probs_V).abs() / (len(decoded) * probs_V * (1 - probs_V)).sqrt()
    errors_V = torch.where(
        probs_V * len(decoded) < 5, (counts_V > 30).double() * math.inf, errors_V
    ).nan_to_num(0.0)
    worst = int(errors_V.argmax())
    return Measure(
        error=float(errors_V[worst]),
        bound=STANDARD_ERRORS,
        what=f"id {worst} drawn {int(counts_V[worst])} times of {len(decoded)}, standard errors",
    )


@DECODING.law(
    "ends and limits",
    "ids after an end, an end that is cut off, another length",
    cases=plan(lengths=(3, 7, 5), do_sample=True, num_return_sequences=4, top_k=0, temperature=2.0),
)
def completions_end_where_they_should(stack: Any, case: DecodingPlan) -> Measure:
    """Check the limit, the padding after an end, and the order of prompts."""
    decoded = stack.decoded(case)
    wrong = []
    for number, one in enumerate(decoded):
        length = completed(stack, one)
        if any(token != stack.pad_id for token in one.ids[length:]):
            wrong.append(f"completion {number} has {list(one.ids)} after its end at {length}")
        if length < case.num_new and one.ids[length - 1] != stack.end_id:
            wrong.append(f"completion {number} has {length} ids and no end")
        if len(one.ids) > case.num_new:
            wrong.append(f"completion {number} has {len(one.ids)} ids of {case.num_new}")
    given = [one.prompt_ids for one in decoded]
    copies = int(case.options.get("num_return_sequences", 1))
    if given != [prompt for prompt in case.prompts for _ in range(copies)]:
        wrong.append("prompts are in another order")
    return Measure.count(wrong, "completions that end elsewhere")


@DECODING.law("rows that end at different places", "all rows that end with the first one", cases=ending())
@DECODING.law(
    "rows that end at different places, without a cache", "all rows that end with the first one",
    cases=ending(use_cache=False), thorough=True,
)  # fmt: skip
def rows_end_by_themselves(stack: Any, case: DecodingPlan) -> Measure:
    """Check rows of which some end before the limit and others after them.

    Raises:
        NotServed: all rows end at one place.
    """
    found = completions_end_where_they_should(stack, case)
    if found.holds and len({completed(stack, one) for one in stack.decoded(case)}) < 3:
        raise NotServed("rows end at one place")
    return found


@DECODING.law("log-probabilities of ids", "raw logits in place of scores, an id of another step")
@DECODING.law(
    "log-probabilities of ids, sampled",
    "raw logits in place of scores",
    cases=sampled(temperature=0.7, top_p=0.9),
)
def transitions_are_of_the_scores(stack: Any, case: DecodingPlan) -> Measure:
    """Compare the stack's log-probabilities of ids with the scores of their steps."""
    found = [
        (
            abs(one.transitions[place] - float(one.scores[place].double().log_softmax(0)[one.ids[place]])),
            f"completion {number}, id {place + 1}",
        )
        for number, one in enumerate(stack.decoded(case))
        for place in range(completed(stack, one))
    ]
    return Measure.largest(found, BOUND, "log-probabilities of ids against their scores, difference")


@DECODING.law("scores without an option", "an option that is on by default", cases=GREEDY)
@DECODING.law(
    "renormalize_logits", "an option that is ignored", cases=plan(do_sample=False, renormalize_logits=True)
)
@DECODING.law(
    "renormalize_logits after a penalty",
    "scores that are normalized before they are changed",
    cases=plan(do_sample=False, renormalize_logits=True, repetition_penalty=1.8, suppress_tokens=[3, 11]),
)
def scores_are_normalized_where_asked(stack: Any, case: DecodingPlan) -> Measure:
    """Compare the total probability of scores with 1, or scores with the raw logits where no option is given."""
    found = []
    for number, one in enumerate(stack.decoded(case)):
        for place in range(completed(stack, one)):
            scores_V = one.scores[place].double()
            if "renormalize_logits" in case.options:
                error = abs(float(scores_V.logsumexp(0)))
            else:
                error = float((scores_V - one.logits[place].double()).abs().max())
            found.append((error, f"completion {number}, id {place + 1}"))
    return Measure.largest(found, BOUND, "scores against normalized ones or raw logits, difference")


def _defaults(stack: Any, seed: int, tidy: bool) -> DecodingPlan:
    return DecodingPlan(
        prompts=prompts(stack, seed, (5, 5)),
        defaults={"do_sample": True, "temperature": 0.5, "top_k": 4, "repetition_penalty": 1.5},
        options={"temperature": 1.5, "top_k": 9},
        seed=seed,
    )


@DECODING.law(
    "options of the model's own",
    "a default of the library over the model's option, or over the caller's",
    cases=_defaults,
)
def options_override_the_models(stack: Any, case: DecodingPlan) -> Measure:
    """Compare completions under the model's own options, some overridden, with those where all are given."""
    merged = {**case.defaults, **case.options}
    right = stack.decoded(DecodingPlan(prompts=case.prompts, options=merged, seed=case.seed))
    wrong = [
        f"completion {number}: {list(one.ids)}, due {list(due.ids)}"
        for number, (one, due) in enumerate(zip(stack.decoded(case), right, strict=True))
        if one.ids != due.ids
    ]
    return Measure.count(wrong, "completions that differ")


LOOKED_UP: Mapping[str, Any] = {
    "lengths": (12,),
    "num_new": 10,
    "do_sample": False,
    "prompt_lookup_num_tokens": 3,
}


@DECODING.law(
    "greedy ids, candidates from the prompt",
    "a candidate that is kept, or an id left out",
    cases=plan(**LOOKED_UP),
)
@DECODING.law(
    "greedy ids, candidates from the prompt and a penalty",
    "a penalty of other ids than those before the candidate",
    cases=plan(repetition_penalty=1.4, **LOOKED_UP),
)
@DECODING.law("greedy ids, without a cache", "a mask or places of another step", cases=plan(use_cache=False))
@DECODING.law(
    "greedy ids, from a static cache",
    "places in the cache that are those of another row",
    thorough=True,
    cases=plan(lengths=(3, 7, 5), cache_implementation="static"),
)
@DECODING.law(
    "greedy ids, a prompt in chunks",
    "a mask or places of another chunk",
    thorough=True,
    cases=plan(lengths=(3, 9, 5), prefill_chunk_size=4),
)
@DECODING.law(
    "greedy ids, candidates from another model",
    "a candidate that is kept, or an id left out",
    thorough=True,
    cases=plan(lengths=(8,), num_new=12, do_sample=False, assistant_model="another", num_assistant_tokens=4),
)
@DECODING.law(
    "greedy ids, candidates from another model and a penalty",
    "a penalty of other ids than those before the candidate",
    thorough=True,
    cases=plan(
        lengths=(8,), num_new=12, do_sample=False, assistant_model="another", repetition_penalty=1.3,
        no_repeat_ngram_size=2,
    ),
)  # fmt: skip
def way_of_decoding_changes_no_id(stack: Any, case: DecodingPlan) -> Measure:
    """Compare the ids of a way of decoding with the plain one's."""
    ways = (
        "prompt_lookup_num_tokens", "use_cache", "cache_implementation", "prefill_chunk_size", "assistant_model",
        "num_assistant_tokens",
    )  # fmt: skip
    plain = {name: value for name, value in case.options.items() if name not in ways}
    right = stack.decoded(replace(case, options={"do_sample": False, **plain}))
    wrong = [
        f"completion {number}: {list(one.ids)}, due {list(due.ids)}"
        for number, (one, due) in enumerate(zip(stack.decoded(case), right, strict=True))
        if one.ids != due.ids
    ]
    return Measure.count(wrong, "completions that differ")


@DECODING.law(
    "guidance",
    "a context that has the prompt, a scale of the wrong difference, a cache of another step",
    thorough=True,
    cases=plan(lengths=(3, 7), do_sample=False, guidance_scale=1.7),
)
@DECODING.law(
    "guidance, without a cache",
    "a context that does not have earlier ids",
    thorough=True,
    cases=plan(lengths=(3, 7), do_sample=False, guidance_scale=0.4, use_cache=False),
)
@DECODING.law(
    "guidance, another prompt",
    "the last id in place of the other prompt",
    thorough=True,
    cases=plan(
        lengths=(5, 5), do_sample=False, guidance_scale=2.5, negative_prompt_ids=[[9, 4, 30], [8, 15, 6]]
    ),
)
def guidance_leads_away_from_other_scores(stack: Any, case: DecodingPlan) -> Measure:
    """Compare scores with those that are `guidance_scale` times as far from those after the other prompt.

    The other prompt is the last id where none is given (Sanchez et al. 2023).
    """
    others = case.options.get("negative_prompt_ids") or [prompt[-1:] for prompt in case.prompts]
    scale, found = case.options["guidance_scale"], []
    for number, (one, other) in enumerate(zip(stack.decoded(case), others, strict=True)):
        without_SV = stack.next_logits((*other, *one.ids)).double().log_softmax(-1)
        for place in range(completed(stack, one)):
            with_V = one.logits[place].double().log_softmax(0)
            without_V = without_SV[len(other) + place - 1]
            due_V = without_V + scale * (with_V - without_V)
            error = (one.scores[place].double() - due_V).abs().max() / due_V.abs().max()
            found.append((float(error), f"completion {number}, id {place + 1}"))
    return Measure.largest(found, 5e-4, "scores against those of guidance, relative")


def completed(stack: Any, one: Decoded) -> int:
    """Return the number of ids up to the first end, which is included."""
    return one.ids.index(stack.end_id) + 1 if stack.end_id in one.ids else len(one.ids)
