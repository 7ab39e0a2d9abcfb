"""R26.decoding: scores, ends and padding of beams are those of a slow search; embeddings count as their prompt does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from seatrial.relations.contracts.decoding import DecodingPlan
from seatrial.relations.law import Measure
from seatrial.relations.laws.generation.decoding import (
    DECODING,
    completed,
    distribution_is_of_the_options,
    plan,
)
from seatrial.relations.not_served import NotServed


def _embedded(**options: Any) -> Callable[..., DecodingPlan]:
    return lambda *given: replace(plan(do_sample=False, **options)(*given), embedded=True)


for _name, _least in (("min_new_tokens", 4), ("min_length", 8)):
    DECODING.law(
        f"{_name} of embeddings",
        "a prompt of embeddings that counts as none",
        cases=_embedded(**{_name: _least}),
    )(distribution_is_of_the_options)


def _beams(**options: Any) -> Callable[..., DecodingPlan]:
    return plan(do_sample=False, ends=False, **options)


@DECODING.law(
    "scores of beams",
    "a sum of other ids, another length in the penalty",
    cases=_beams(lengths=(3, 7), num_beams=4, length_penalty=0.7, num_return_sequences=3),
)
def beams_have_their_score(stack: Any, case: DecodingPlan) -> Measure:
    """Compare the score of every beam with the log-probabilities of its row computed at once."""
    found = []
    for number, one in enumerate(stack.decoded(case)):
        total = _total(stack, one.prompt_ids, one.ids, float(case.options["length_penalty"]))
        found.append(
            (abs(math.nan if one.total is None else one.total - total) / abs(total), f"beam {number}")
        )
    return Measure.largest(found, 1e-4, "scores of beams against those of their rows, relative")


def _beams_that_end(**options: Any) -> Callable[..., DecodingPlan]:
    """Return a law's `cases`: a plan with beams of which some end before the limit."""

    def make(stack: Any, seed: int, tidy: bool) -> DecodingPlan:
        likely = [[[stack.end_id], 1.0]]
        made = plan(
            lengths=(3, 7, 5, 9), do_sample=False, sequence_bias=likely, **{"num_beams": 3, **options}
        )
        return made(stack, seed, tidy)

    return make


@DECODING.law(
    "beams that end",
    "an end that is not kept, a penalty of another length, beams that continue or stop too early",
    thorough=True,
    cases=_beams_that_end(num_beams=4, num_new=8),
)
@DECODING.law(
    "beams that end, a penalty of lengths",
    "a penalty of another length, the wrong way",
    thorough=True,
    cases=_beams_that_end(num_new=8, length_penalty=2.5),
)
@DECODING.law(
    "beams that end, at the first that are enough",
    "beams that continue",
    thorough=True,
    cases=_beams_that_end(num_new=8, early_stopping=True, length_penalty=-0.5),
)
@DECODING.law(
    "beams that end, never early",
    "beams that stop too early",
    thorough=True,
    cases=_beams_that_end(num_new=8, early_stopping="never", length_penalty=1.5),
)
def beams_are_those_of_a_search(stack: Any, case: DecodingPlan) -> Measure:
    """Compare the best row of each prompt with that of a slow search of the prompt alone."""
    wrong = []
    for prompt, one in zip(case.prompts, stack.decoded(case), strict=True):
        ids, total = _searched(stack, case, prompt)
        given = one.ids[: completed(stack, one)]
        if given != ids or one.total is None or not abs(one.total - total) <= 1e-3 * abs(total):
            wrong.append(f"{list(given)} with {one.total}, due {list(ids)} with {total:.6g}")
    return Measure.count(wrong, "rows that are not those of a search")


def _searched(stack: Any, case: DecodingPlan, prompt: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
    """Return the ids and the score of the best beam.

    Each step the best candidates, twice as many as beams, continue, or end if they are among the first of them. The
    search stops when as many beams ended as are kept and, unless it may stop at once, no other can become better: by
    its length of now, or, if it never stops early and longer ones score higher, by the longest.
    """
    beams, power = int(case.options["num_beams"]), float(case.options.get("length_penalty", 1.0))
    early = case.options.get("early_stopping", False)
    running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, case.num_new + 1):
        candidates = []
        for total, ids in running:
            scores_V = stack.next_logits((*prompt, *ids))[-1].double().log_softmax(0)
            scores_V[stack.end_id] += case.options["sequence_bias"][0][1]
            candidates += [(total + score, (*ids, token)) for token, score in enumerate(scores_V.tolist())]
        candidates = sorted(candidates, reverse=True)[: 2 * beams]
        last = length == case.num_new
        done = [(total, ids) for total, ids in candidates[:beams] if last or ids[-1] == stack.end_id]
        ended = sorted([*ended, *((total / length**power, ids) for total, ids in done)], reverse=True)[:beams]
        running = [(total, ids) for total, ids in candidates if ids[-1] != stack.end_id][:beams]
        if len(ended) < beams:
            continue
        longest = case.num_new if early == "never" and power > 0 else length
        if early is True or running[0][0] / longest**power <= ended[-1][0]:
            break
    best = ended[0]
    return best[1], best[0]


@DECODING.law(
    "padding after beams that end", "the end in place of padding, as its id is 0", cases=_beams_that_end()
)
def padding_follows_ends_of_beams(stack: Any, case: DecodingPlan) -> Measure:
    """Check that padding alone follows the first end of a row."""
    wrong, num_ended = [], 0
    for number, one in enumerate(stack.decoded(case)):
        place = one.ids.index(stack.end_id) if stack.end_id in one.ids else len(one.ids)
        rest = one.ids[place + 1 :]
        num_ended += bool(rest)
        if any(token != stack.pad_id for token in rest):
            wrong.append(f"row {number}: {list(one.ids)}")
    if not num_ended:
        raise NotServed("no row ends before the limit")
    return Measure.count(wrong, "rows with other ids than padding after their end")


@DECODING.law(
    "the best of all beams",
    "beams that are dropped or mixed up",
    cases=_beams(lengths=(4,), num_new=2, num_beams=61, length_penalty=1.0),
)
def as_many_beams_as_ids_find_the_best(stack: Any, case: DecodingPlan) -> Measure:
    """Compare the best of as many beams as there are ids with the best of all pairs of ids."""
    (prompt,) = case.prompts
    first_V = stack.next_logits(prompt)[-1].double().log_softmax(0)
    best = max(
        float(first_V[token] + stack.next_logits((*prompt, token))[-1].double().log_softmax(0).max())
        for token in range(stack.vocab_size)
    )
    (found,) = stack.decoded(case)
    given = _total(stack, prompt, found.ids, 0.0)
    return Measure(
        error=abs(given - best),
        bound=1e-3,
        what=f"log-probability {given:.5g} of the beam, {best:.5g} is the best",
    )


def _total(stack: Any, prompt: tuple[int, ...], ids: tuple[int, ...], penalty: float) -> float:
    logprobs_SV = stack.next_logits((*prompt, *ids)).double().log_softmax(-1)
    total = sum(float(logprobs_SV[len(prompt) + place - 1, token]) for place, token in enumerate(ids))
    return total / float(len(ids) ** penalty)
