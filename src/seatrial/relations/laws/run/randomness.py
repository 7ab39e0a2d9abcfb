"""R26.run: random streams of a run."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from typing import Any

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.run.filters import SEVERAL
from seatrial.relations.records.evidence import differences, same
from seatrial.relations.runs import RunCase, run, run_cases

CHANCE = 1e-9
"""Smallest probability of an agreement that still counts as chance."""
# Every token is equally likely, and every step has the same prompts in the same rows.
UNIFORM = run_cases(
    policy__generation__temperature=1e6,
    policy__generation__stop_token_ids=(),
    policy__generation__max_new_tokens=8,
    policy__optimizer__lr=1e-9,
    grpo__max_num_steps=3,
    data__num_train=2,
    data__shuffle=False,
)

SEVERAL_UNIFORM = run_cases(
    **{
        **SEVERAL,
        "grpo__max_num_steps": 1,
        "policy__generation__temperature": 1e6,
        "policy__generation__stop_token_ids": (),
        "policy__generation__max_new_tokens": 4,
    }
)
STREAMS = Relation(
    id="R26.run",
    name="run-random-streams",
    component="run",
    statement="One seed is one run; steps, rows and copies have independent random numbers; global streams are "
    "untouched.",
    catalogue="SB040 SB051 SB056 SB061 SB311 SB312 SB328",
    cost="CPU, seconds",
    cases=run_cases(),
    seeded=False,
)


@STREAMS.law("one seed, one run", "a global stream, a clock, a hash that changes with the process")
def one_seed_one_run(stack: Any, case: RunCase) -> Measure:
    """Compare two runs of one seed, bit for bit."""
    wrong = differences(case.record(stack), case.repeat(stack))
    return Measure.count(wrong, "what differs in a repeated run")


@STREAMS.law("another seed, another run", "a fixed seed, the seed left at its default")
def another_seed_another_run(stack: Any, case: RunCase) -> Measure:
    """Check that another seed samples other ids and begins with the same weights."""
    one, other = case.record(stack), run(stack, case.options, case.seed + 1)
    sampled, others = ([[row.ids for row in step.rows] for step in record.steps] for record in (one, other))
    wrong = ["the ids are equal"] * same(sampled, others)
    wrong += ["initial weights differ"] * (not same(one.initial_weights, other.initial_weights))
    return Measure.count(wrong, "what another seed left unchanged, or changed and must not")


@STREAMS.law("copies of a prompt differ", "one stream for every row, greedy decoding left on")
def copies_of_a_prompt_differ(stack: Any, case: RunCase) -> Measure:
    """Check that no group has the same completion in all of its rows."""
    wrong = [
        f"step {step.step}, prompt {prompt}"
        for step in case.record(stack).steps
        for prompt in set(step.prompts_served)
        if len({row.ids for row in step.rows if row.prompt_id == prompt}) == 1
    ]
    return Measure.count(wrong, "groups whose completions are all the same")


@STREAMS.law(
    "no two rows share numbers", "the same stream for every seed, step, rank or batch", cases=UNIFORM
)
def no_two_rows_share_numbers(stack: Any, case: RunCase) -> Measure:
    """Check that no two rows of any step or seed have the same ids, if every token is equally likely."""
    streams = {
        f"seed {seed}, {place}": row.ids
        for seed in (case.seed, case.seed + 1)
        for place, _, row in run(stack, case.options, seed).rows()
    }
    wrong = [
        f"{one} and {other}" for one, other in combinations(streams, 2) if streams[one] == streams[other]
    ]
    return Measure.count(wrong, "rows that were drawn with the same numbers")


@STREAMS.law(
    "no two rows of several generation batches share numbers",
    "the stream of the first batch for every batch of a step",
    cases=SEVERAL_UNIFORM,
)
def no_two_batches_share_numbers(stack: Any, case: RunCase) -> Measure | None:
    """Check the same of rows that dynamic sampling sampled, kept or not, in steps of several batches."""
    record = case.record(stack)
    rows = [[*step.rows, *step.discarded_rows] for step in record.steps]
    if not any(len(of_step) > len(step.rows) for of_step, step in zip(rows, record.steps, strict=True)):
        return None
    streams = {
        f"step {step.step}, row {index} of {len(of_step)}": row.ids
        for of_step, step in zip(rows, record.steps, strict=True)
        for index, row in enumerate(of_step)
    }
    wrong = [
        f"{one} and {other}" for one, other in combinations(streams, 2) if streams[one] == streams[other]
    ]
    return Measure.count(wrong, "rows that were drawn with the same numbers")


@STREAMS.law("numbers are independent", "one number for all rows or for all tokens", cases=UNIFORM)
def numbers_are_independent(stack: Any, case: RunCase) -> Measure:
    """Check that tokens of two rows, and neighbours in one row, agree as often as chance predicts."""
    record = case.record(stack)
    rows = [row.ids for _, _, row in record.rows()]
    compared = [pair for one, other in combinations(rows, 2) for pair in zip(one, other, strict=False)]
    compared += [pair for one, other in combinations(rows, 2) for pair in zip(one, other[1:], strict=False)]
    compared += [pair for ids in rows for pair in pairwise(ids)]
    agreeing, by_chance = sum(one == other for one, other in compared), len(compared) / record.vocab_size
    unlikely = _tail(agreeing, by_chance)
    return Measure(
        error=0 if unlikely > CHANCE else 1,
        bound=0,
        what=f"{agreeing} of {len(compared)} pairs of tokens agree, {by_chance:.1f} are expected "
        f"(probability {unlikely:.2g}; 1: too many)",
    )


def _tail(count: int, mean: float) -> float:
    """Return the probability that a Poisson number of this mean is at least `count`."""
    below = math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count))
    return max(0.0, 1.0 - below) if count else 1.0


@STREAMS.law("first tokens are spread", "seeds too near to each other", cases=UNIFORM)
def first_tokens_are_spread(stack: Any, case: RunCase) -> Measure:
    """Compare the number of distinct first tokens with that of independent draws."""
    record = case.record(stack)
    first = [row.ids[0] for _, _, row in record.rows()]
    expected = record.vocab_size * (1 - (1 - 1 / record.vocab_size) ** len(first))
    return Measure(
        error=max(0.0, expected - len(set(first))),
        bound=5 * math.sqrt(max(expected, 1.0)),
        what=f"{len(set(first))} distinct first tokens of {len(first)}, {expected:.1f} are expected; too few by",
    )


@STREAMS.law("global streams are untouched", "torch.manual_seed, a draw without a generator")
def global_streams_are_untouched(stack: Any, case: RunCase) -> Measure:
    """Check that the run leaves process-wide random streams as they were."""
    return Measure(
        error=not case.record(stack).global_streams_untouched,
        bound=0,
        what="whether the run moved process-wide random streams (1: it did)",
    )
