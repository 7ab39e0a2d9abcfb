"""R17.run_filters: filters use the verifier's rewards, and shaping uses lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.relations.law import Measure, Relation
from seatrial.relations.measures.rows import overlong_penalty
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import is_stated
from seatrial.relations.records.run import RunRecord, RunRow, StepRecord
from seatrial.relations.runs import RunCase, run_cases

COARSE = {
    "data__verifier": "coarse",
    "grpo__num_prompts_per_step": 4,
    "policy__train_global_batch_size": 16,
    "data__num_train": 8,
}
SHAPED = {
    "grpo__reward_shaping__enabled": True,
    "grpo__reward_shaping__overlong_buffer_length": 4,
    "grpo__reward_shaping__overlong_buffer_penalty": 0.7,
    "grpo__reward_shaping__max_response_length": 5,
}
FILTER = {"grpo__zero_variance_filter": True}

FILTERS = Relation(
    id="R17.run_filters",
    name="run-filters-keep-the-signal",
    component="run",
    statement="Filters drop exactly the rows that they name, by the verifier's rewards; shaping is its definition.",
    catalogue="SB148",
    cost="CPU, seconds",
)


def _by_prompt(rows: Sequence[RunRow]) -> dict[int, list[RunRow]]:
    groups: dict[int, list[RunRow]] = {}
    for row in rows:
        groups.setdefault(row.prompt_id, []).append(row)
    return groups


def _groups(record: RunRecord) -> list[list[RunRow]]:
    return [group for step in record.steps for group in _by_prompt(step.rows).values()]


def _has_spread(group: Sequence[RunRow]) -> bool:
    return len({row.reward_before_shaping for row in group}) > 1


@FILTERS.law(
    "rows that were cut off",
    "the test inverted, the finish reason of another row",
    cases=run_cases(grpo__overlong_filtering=True),
)
def truncated_rows_do_not_train(stack: Any, case: RunCase) -> Measure | None:
    """Check that rows that reached the limit do not train and all others do; all count for their group's baseline."""
    rows = [row for _, _, row in case.record(stack).rows()]
    if len({row.finish_reason for row in rows}) < 2:
        return None
    wrong = [
        f"row {index} ended by {row.finish_reason}, mask {row.mask}"
        for index, row in enumerate(rows)
        if row.mask != (int(row.finish_reason == "stop"),) * len(row.ids)
    ]
    return Measure.count(wrong, "truncated rows that train, or complete rows that do not")


@FILTERS.law(
    "groups without spread",
    "rows judged for groups, groups formed by position, the test inverted",
    cases=run_cases(**COARSE, **FILTER),
)
def groups_without_spread_do_not_train(stack: Any, case: RunCase) -> Measure | None:
    """Check that exactly the groups with different rewards of the verifier train."""
    groups = _groups(case.record(stack))
    if len({_has_spread(group) for group in groups}) < 2:
        return None
    wrong = [
        f"rewards {[row.reward_before_shaping for row in group]}, trained {[any(row.mask) for row in group]}"
        for group in groups
        if {any(row.mask) for row in group} != {_has_spread(group)}
    ]
    return Measure.count(
        wrong, "groups that train without different rewards of the verifier, or do not with them"
    )


@FILTERS.law(
    "groups without spread, shaped",
    "the filter looks at shaped rewards, in which lengths alone make a spread",
    cases=run_cases(**COARSE, **FILTER, **SHAPED),
)
def shaping_makes_no_spread(stack: Any, case: RunCase) -> Measure | None:
    """Check the filter if a length penalty makes equal rewards differ: they still carry no signal of the verifier."""
    groups = _groups(case.record(stack))
    if not any(not _has_spread(group) and len({row.reward for row in group}) > 1 for group in groups):
        return None
    return groups_without_spread_do_not_train(stack, case)


@FILTERS.law(
    "dynamic sampling",
    "the test inverted, prompts drawn and never judged, groups cut",
    cases=run_cases(**COARSE, grpo__use_dynamic_sampling=True),
)
def dynamic_sampling_keeps_groups_with_spread(stack: Any, case: RunCase) -> Measure | None:
    """Check which groups dynamic sampling keeps and drops."""
    record = case.record(stack)
    if not any(step.discarded_rows for step in record.steps):
        return None
    wrong = [reason for step in record.steps for reason in _sampling_errors(step, record.options)]
    return Measure.count(wrong, "groups kept without different rewards of the verifier, or dropped with them")


def _sampling_errors(step: StepRecord, options: Mapping[str, Any]) -> list[str]:
    """Return the groups that a step wrongly kept or dropped; only a full step drops a group with a signal."""
    kept, dropped = _by_prompt(step.rows), _by_prompt(step.discarded_rows)
    wrong = [
        f"step {step.step}: prompt {prompt} kept, rewards {[row.reward_before_shaping for row in group]}"
        for prompt, group in kept.items()
        if not _has_spread(group)
    ]
    if len(kept) == options["grpo.num_prompts_per_step"]:
        return wrong
    wrong += [
        f"step {step.step}: prompt {prompt} dropped"
        for prompt, group in dropped.items()
        if _has_spread(group)
    ]
    return [*wrong, f"step {step.step}: {len(kept)} prompts"]


SEVERAL = {
    **COARSE,
    "grpo__use_dynamic_sampling": True,
    "grpo__num_generations_per_prompt": 2,
    "policy__train_global_batch_size": 8,
    "data__num_train": 8,
    "grpo__max_num_steps": 3,
}
"""Groups of two, about half of which have equal rewards: a step needs several generation batches, which draw prompts
again."""


@FILTERS.law(
    "several generation batches",
    "prompts of a later batch that replace those before, random numbers used again, rows counted once a batch",
    cases=run_cases(**SEVERAL),
)
def several_batches_fill_a_step(stack: Any, case: RunCase) -> Measure | None:
    """Check that a step of several batches is full, with whole groups, each prompt and each row once."""
    record = case.record(stack)
    size, num_prompts = (
        record.options[f"grpo.num_{name}"] for name in ("generations_per_prompt", "prompts_per_step")
    )
    wrong, several = [], False
    for step in record.steps:
        kept, dropped = _by_prompt(step.rows), _by_prompt(step.discarded_rows)
        several |= len(step.prompts_served) > num_prompts
        served = Counter(step.prompts_served)
        sampled = Counter({prompt: len(rows) for prompt, rows in dropped.items()})
        sampled.update({prompt: len(rows) for prompt, rows in kept.items()})
        # A prompt that is drawn again may be sampled again unless the step holds it.
        wrong += [
            f"prompt {one}: {num} rows"
            for one, num in sampled.items()
            if num % size or num > size * served[one]
        ]
        wrong += [f"prompt {one} was served and lost" for one in served if not sampled[one]]
        wrong += [f"prompt {one} has {len(rows)} rows" for one, rows in kept.items() if len(rows) != size]
        wrong += [f"{len(kept)} prompts"] * (len(kept) != num_prompts)
        wrong += _sampling_errors(step, record.options)
    return Measure.count(wrong, "what is wrong with steps of several generation batches") if several else None


@FILTERS.law(
    "a step that is not filled ends the run",
    "a limit that nothing compares, a step that is smaller than configured",
    cases=run_cases(
        **{
            **COARSE,
            # A group, so that a step that is too small has whole updates.
            "policy__train_global_batch_size": 4,
            "grpo__use_dynamic_sampling": True,
            "grpo__dynamic_sampling_max_gen_batches": 1,
            "grpo__max_num_steps": 3,
        }
    ),
    seeded=False,
)
def unfilled_step_ends_the_run(stack: Any, case: RunCase) -> Measure:
    """Check that a run ends with an error where its only generation batch does not fill a step.

    Raises:
        NotServed: every step of this run was filled.
    """
    case.record(stack, grpo__use_dynamic_sampling=False, grpo__dynamic_sampling_max_gen_batches=None)
    try:
        record = case.record(stack)
    except NotServed:
        raise
    except Exception as error:
        if not is_stated(error):  # the stack chooses the type of its error, but a crash does not count
            raise
        return Measure.count([], "steps that are not full, or of more prompts than allowed")
    due, wrong = record.options["grpo.num_prompts_per_step"], []
    for step in record.steps:
        num_groups, num_served = len({row.prompt_id for row in step.rows}), len(step.prompts_served)
        if num_groups != due or num_served > due:
            wrong.append(f"step {step.step}: {num_groups} groups of {due}, from {num_served} prompts")
    if not wrong:
        raise NotServed("every step of this run was filled")
    return Measure.count(wrong, "steps that are not full, or of more prompts than allowed")


@FILTERS.law(
    "penalty on length", "a buffer off by one, lengths of other rows, a sign", cases=run_cases(**SHAPED)
)
def length_penalty_is_its_definition(stack: Any, case: RunCase) -> Measure | None:
    """Compare the difference of the two rewards with soft overlong punishment (DAPO, arXiv 2503.14476, eq. 13)."""
    record = case.record(stack)
    options = [
        float(record.options[f"grpo.reward_shaping.{name}"])
        for name in ("max_response_length", "overlong_buffer_length", "overlong_buffer_penalty")
    ]
    found, penalised = [], False
    for place, _, row in record.rows():
        penalty = overlong_penalty(len(row.ids), *options)
        penalised |= penalty < 0
        error = abs(row.reward - (row.reward_before_shaping + penalty))
        found.append((error, f"{place}, {len(row.ids)} tokens: {row.reward_before_shaping} to {row.reward}"))
    return Measure.largest(found, 1e-5, "penalty on length against its definition") if penalised else None
