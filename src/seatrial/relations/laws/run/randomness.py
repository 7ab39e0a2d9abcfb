"""R26, R14 and R23 of the whole run: random streams, the order of prompts, and validation in between."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.records.evidence import evidence, same, whole
from seatrial.relations.records.run import RunRecord
from seatrial.relations.runs import RunCase, run, run_again, run_cases

CHANCE = 1e-9
"""What an agreement of independent streams may be as unlikely as."""


def _count(wrong: Sequence[str], what: str) -> Measure:
    return Measure(error=float(len(wrong)), bound=0, what=f"{what} ({'; '.join(list(wrong)[:3]) or 'none'})")


def _one_seed_one_run(stack: Any, case: RunCase) -> Measure:
    first, second = whole(case.record(stack)), whole(run_again(stack, case.options, case.seed))
    return _count(
        [name for name in first if not same(first[name], second[name])], "what a repeated run left otherwise"
    )


def _other_seed(stack: Any, case: RunCase) -> Measure:
    one = case.record(stack)
    other = run(stack, case.options, case.seed + 1)
    equal = [
        what
        for what in ("prompts_served", "ids")
        if same(evidence(one, what, first=False), evidence(other, what, first=False))
    ]
    weights = same(one.initial_weights, other.initial_weights)
    wrong = [*(["ids"] if "ids" in equal else []), *([] if weights else ["initial weights differ"])]
    return _count(wrong, "what another seed left as it was, or changed and must not")


def _copies_differ(stack: Any, case: RunCase) -> Measure:
    record = case.record(stack)
    wrong = [
        f"step {step.step}, prompt {prompt}"
        for step in record.steps
        for prompt in set(step.prompts_served)
        if len({row.ids for row in step.rows if row.prompt_id == prompt}) == 1
    ]
    return _count(wrong, "groups whose completions are all one")


def _streams_are_apart(stack: Any, case: RunCase) -> Measure:
    """Where every token is equally likely, ids are the random numbers: no two rows of any step or seed share them."""
    streams = {
        f"seed {seed}, step {step.step}, row {index}": row.ids
        for seed in (case.seed, case.seed + 1)
        for step in run(stack, case.options, seed).steps
        for index, row in enumerate(step.rows)
    }
    pairs = [(one, other) for one, other in combinations(streams, 2) if streams[one] == streams[other]]
    return _count(
        [f"{one} and {other}" for one, other in pairs], "rows that were drawn with the same numbers"
    )


def _streams_are_independent(stack: Any, case: RunCase) -> Measure:
    """Tokens agree between rows, at one position and at the next, as often as chance has it."""
    record = case.record(stack)
    rows = [row.ids for step in record.steps for row in step.rows]
    compared = [pair for one, other in combinations(rows, 2) for pair in zip(one, other, strict=False)]
    compared += [pair for one, other in combinations(rows, 2) for pair in zip(one, other[1:], strict=False)]
    compared += [pair for ids in rows for pair in pairwise(ids)]
    agreeing = sum(one == other for one, other in compared)
    unlikely = _tail(agreeing, len(compared) / record.vocab_size)
    by_chance = len(compared) / record.vocab_size
    return Measure(
        error=0.0 if unlikely > CHANCE else 1.0,
        bound=0,
        what=f"{agreeing} of {len(compared)} pairs of tokens agree, chance makes {by_chance:.1f} "
        f"(probability {unlikely:.2g}; 1: too many)",
    )


def _tail(count: int, mean: float) -> float:
    """Return the probability that a Poisson number of this mean is at least `count`."""
    below = math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count))
    return max(0.0, 1.0 - below) if count else 1.0


def _spreads_over_the_vocabulary(stack: Any, case: RunCase) -> Measure:
    """First tokens of rows are spread: their number of distinct values is what independent draws have."""
    record = case.record(stack)
    first = [row.ids[0] for step in record.steps for row in step.rows]
    expected = record.vocab_size * (1 - (1 - 1 / record.vocab_size) ** len(first))
    return Measure(
        error=max(0.0, expected - len(set(first))),
        bound=5 * math.sqrt(max(expected, 1.0)),
        what=f"{len(set(first))} distinct first tokens of {len(first)}, chance makes {expected:.1f}; too few by",
    )


def _global_streams(stack: Any, case: RunCase) -> Measure:
    untouched = case.record(stack).global_streams_untouched
    return Measure(
        error=float(not untouched),
        bound=0,
        what="whether the run moved process-wide random streams (1: it did)",
    )


def _served(record: RunRecord) -> list[int]:
    return [prompt for step in record.steps for prompt in step.prompts_served]


def _epochs_are_permutations(stack: Any, case: RunCase) -> Measure:
    """Every epoch serves each training prompt once; where it does not come out even, the rest is served too."""
    record = case.record(stack)
    size, served = len(record.train_prompts), _served(record)
    wrong = []
    if size != record.options["data.num_train"]:
        wrong.append(f"{size} training prompts for data.num_train={record.options['data.num_train']}")
    for start in range(0, len(served), size):
        epoch = Counter(served[start : start + size])
        extra = [prompt for prompt, count in epoch.items() if count > 1 or prompt not in record.train_prompts]
        missing = set(record.train_prompts) - set(epoch) if start + size <= len(served) else set()
        if extra or missing:
            wrong.append(f"epoch {start // size + 1}: {extra} too often or unknown, {sorted(missing)} never")
    if len(served) <= size:
        wrong.append("the run is shorter than an epoch")
    return _count(wrong, "epochs that are no permutation of the training prompts")


def _shuffling(stack: Any, case: RunCase) -> Measure:
    """Shuffled, epochs have orders of their own and another seed has another; not shuffled, all are one."""
    shuffled = case.record(stack)
    other = run(stack, case.options, case.seed + 1)
    plain = case.record(stack, data__shuffle=False)
    size = len(shuffled.train_prompts)
    wrong = []
    if _served(shuffled)[:size] == _served(shuffled)[size : 2 * size]:
        wrong.append("two shuffled epochs in one order")
    if _served(shuffled) == _served(other):
        wrong.append("another seed in the same order")
    if _served(plain)[:size] != _served(plain)[size : 2 * size]:
        wrong.append("two epochs that are not shuffled in two orders")
    return _count(wrong, "orders that do not follow data.shuffle and the seed")


def _validation_changes_nothing(stack: Any, case: RunCase) -> Measure:
    plain = case.record(stack, grpo__val_period=0, grpo__val_at_start=False)
    validated = case.record(stack)
    if not validated.validations:
        return Measure(error=math.inf, bound=0, what="the run was to validate and left no validation")
    one, other = _without_validations(whole(plain)), _without_validations(whole(validated))
    return _count(
        [name for name in one if not same(one[name], other[name])], "what validation changed in training"
    )


def _without_validations(left: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in left.items() if name != "validations"}


def _validation_is_apart(stack: Any, case: RunCase) -> Measure:
    record = case.record(stack)
    shared = [
        f"validation of step {one.step}, prompt {prompt}"
        for one in record.validations
        for prompt, _, _ in one.rows
        if prompt in record.train_prompts
    ]
    steps = [one.step for one in record.validations]
    due = list(range(record.options["grpo.max_num_steps"] + 1))
    wrong = [*shared, *([] if steps == due else [f"validated after steps {steps}, due after {due}"])]
    return _count(wrong, "validations on training prompts, or at other steps than configured")


FLAT = {
    "policy__generation__temperature": 1e6,
    "policy__generation__stop_token_ids": (),
    "policy__generation__max_new_tokens": 8,
    "policy__optimizer__lr": 1e-9,
    "grpo__max_num_steps": 3,
    "data__num_train": 2,
    "data__shuffle": False,
}
"""Every token is equally likely, and every step has the same prompts in the same rows."""
EPOCHS = {
    "data__num_train": 7,
    "data__shuffle": True,
    "grpo__num_prompts_per_step": 3,
    "grpo__num_generations_per_prompt": 2,
    "grpo__max_num_steps": 5,
    "policy__train_global_batch_size": 6,
    "policy__generation__max_new_tokens": 1,
}
VALIDATED = {"grpo__val_period": 1, "grpo__val_at_start": True, "grpo__max_val_samples": 3}


def _law(name: str, measure: Any, suspects: str, options: Mapping[str, Any] | None = None) -> Law:
    chosen = dict(options or {})
    return Law(
        name=name, make=run_cases(tuple(chosen), **chosen), measure=measure, suspects=suspects, seeded=False
    )


RELATIONS = (
    Relation(
        id="R26.run",
        name="run-random-streams",
        component="run",
        statement="One seed is one run; steps, rows and copies have random numbers of their own; global streams rest.",
        catalogue=("SB040", "SB051", "SB056", "SB061", "SB311", "SB312", "SB328"),
        cost="CPU, seconds",
        laws=(
            _law(
                "one seed, one run",
                _one_seed_one_run,
                "a global stream, a clock, a hash that changes with the process",
            ),
            _law("another seed, another run", _other_seed, "a fixed seed, the seed left at its default"),
            _law(
                "copies of a prompt differ",
                _copies_differ,
                "one stream for every row, greedy decoding left on",
            ),
            _law(
                "no two rows share numbers",
                _streams_are_apart,
                "the same stream for every seed, step, rank or batch",
                FLAT,
            ),
            _law(
                "numbers are independent",
                _streams_are_independent,
                "one number for all rows or for all tokens",
                FLAT,
            ),
            _law(
                "first tokens are spread", _spreads_over_the_vocabulary, "seeds too near to each other", FLAT
            ),
            _law("global streams rest", _global_streams, "torch.manual_seed, a draw without a generator"),
        ),
    ),
    Relation(
        id="R14.run",
        name="run-prompts-follow-the-schedule",
        component="run",
        statement="The prompts of a run's steps are permutations of the training prompts, one an epoch, none left out.",
        catalogue=("SB108", "SB112", "SB277", "SB285", "SB288", "SB297", "SB302", "SB306", "SB384", "SB395"),
        cost="CPU, seconds",
        laws=(
            _law(
                "every epoch is a permutation",
                _epochs_are_permutations,
                "the rest of an epoch dropped, sampling with replacement, an iterator made anew each step",
                EPOCHS,
            ),
            _law(
                "order follows seed and option",
                _shuffling,
                "a fixed order, one permutation for all epochs",
                EPOCHS,
            ),
        ),
    ),
    Relation(
        id="R23.run",
        name="run-validation-changes-nothing",
        component="run",
        statement="A run with validation trains as one without, and validates on prompts that it never trains on.",
        catalogue=("SB216", "SB217", "SB390", "SB391", "SB393", "SB394", "SB396", "SB397"),
        cost="CPU, seconds",
        laws=(
            _law(
                "training beside validation",
                _validation_changes_nothing,
                "one random stream or iterator for both, a mode or a cache left switched",
                VALIDATED,
            ),
            _law(
                "validation is apart",
                _validation_is_apart,
                "the training split validated, a period off by one",
                VALIDATED,
            ),
        ),
    ),
)
