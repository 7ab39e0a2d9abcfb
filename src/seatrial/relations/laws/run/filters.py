"""R17 of the whole run: filters look at what the verifier said, and shaping at lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.measures.rows import overlong_penalty
from seatrial.relations.records.run import RunRow, StepRecord
from seatrial.relations.runs import RunCase, run_cases
from seatrial.relations.worst import is_worse


def _count(wrong: Sequence[str], what: str) -> Measure:
    return Measure(error=float(len(wrong)), bound=0, what=f"{what} ({(list(wrong) or ['none'])[0]})")


def _trains(row: RunRow) -> bool:
    return any(row.mask)


def _groups(rows: Sequence[RunRow]) -> dict[int, list[RunRow]]:
    groups: dict[int, list[RunRow]] = {}
    for row in rows:
        groups.setdefault(row.prompt_id, []).append(row)
    return groups


def _has_spread(group: Sequence[RunRow]) -> bool:
    return len({row.reward_before_shaping for row in group}) > 1


def _overlong(stack: Any, case: RunCase) -> Measure | None:
    """Rows that ran into the limit do not train, all others do; their rewards stay in the baseline of their group."""
    rows = [row for step in case.record(stack).steps for row in step.rows]
    if len({row.finish_reason for row in rows}) < 2:
        return None
    wrong = [
        f"row {index} ended by {row.finish_reason}, mask {row.mask}"
        for index, row in enumerate(rows)
        if row.mask != (int(row.finish_reason == "stop"),) * len(row.ids)
    ]
    return _count(wrong, "rows that train though they were cut off, or do not though they ended")


def _zero_variance(stack: Any, case: RunCase) -> Measure | None:
    groups = [group for step in case.record(stack).steps for group in _groups(step.rows).values()]
    if len({_has_spread(group) for group in groups}) < 2:
        return None
    wrong = [
        f"rewards {[row.reward_before_shaping for row in group]}, trained {[_trains(row) for row in group]}"
        for group in groups
        if {_trains(row) for row in group} != {_has_spread(group)}
    ]
    return _count(wrong, "groups that train without different rewards of the verifier, or do not with them")


def _dynamic(stack: Any, case: RunCase) -> Measure | None:
    record = case.record(stack)
    if not any(step.discarded_rows for step in record.steps):
        return None
    wrong = [reason for step in record.steps for reason in _undue(step, record.options)]
    return _count(wrong, "groups kept without different rewards of the verifier, or dropped with them")


def _undue(step: StepRecord, options: Any) -> list[str]:
    """Return what a step should not have kept or dropped; a group with a signal is dropped from a full step alone."""
    kept, dropped = _groups(step.rows), _groups(step.discarded_rows)
    wrong = [
        f"step {step.step}: prompt {prompt} kept, rewards {[row.reward_before_shaping for row in group]}"
        for prompt, group in kept.items()
        if not _has_spread(group)
    ]
    full = len(kept) == options["grpo.num_prompts_per_step"]
    wrong += [
        f"step {step.step}: prompt {prompt} dropped"
        for prompt, group in dropped.items()
        if _has_spread(group) and not full
    ]
    return wrong if full else [*wrong, f"step {step.step}: {len(kept)} prompts"]


def _shaping(stack: Any, case: RunCase) -> Measure | None:
    """Soft overlong punishment (DAPO, arXiv 2503.14476, equation 13) is what lies between the two rewards."""
    record = case.record(stack)
    longest, buffer, weight = (
        float(record.options[f"grpo.reward_shaping.{name}"])
        for name in ("max_response_length", "overlong_buffer_length", "overlong_buffer_penalty")
    )
    rows = [row for step in record.steps for row in step.rows]
    worst, place, penalised = 0.0, "nowhere", 0
    for index, row in enumerate(rows):
        penalty = overlong_penalty(len(row.ids), longest, buffer, weight)
        penalised += penalty < 0
        error = abs(row.reward - (row.reward_before_shaping + penalty))
        if is_worse(error, worst):
            worst, place = (
                error,
                f"row {index}, {len(row.ids)} tokens: {row.reward_before_shaping} to {row.reward}",
            )
    if not penalised:
        return None
    return Measure(error=worst, bound=1e-5, what=f"penalty on length against its definition, {place}")


def _shaped_and_filtered(stack: Any, case: RunCase) -> Measure | None:
    """A length penalty makes equal answers differ: they still carry no signal of the verifier."""
    groups = [group for step in case.record(stack).steps for group in _groups(step.rows).values()]
    if not any(not _has_spread(group) and len({row.reward for row in group}) > 1 for group in groups):
        return None
    return _zero_variance(stack, case)


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


def _law(name: str, measure: Any, suspects: str, options: dict[str, Any]) -> Law:
    return Law(name=name, make=run_cases(tuple(options), **options), measure=measure, suspects=suspects)


RELATIONS = (
    Relation(
        id="R17.run_filters",
        name="run-filters-keep-the-signal",
        component="run",
        statement="Filters drop exactly the rows that they name, by the verifier's rewards; shaping is its definition.",
        catalogue=("SB148",),
        cost="CPU, seconds",
        laws=(
            _law(
                "rows that were cut off",
                _overlong,
                "the test inverted, the finish reason of another row",
                {"grpo__overlong_filtering": True},
            ),
            _law(
                "groups without spread",
                _zero_variance,
                "rows judged for groups, groups formed by position, the test inverted",
                {**COARSE, **FILTER},
            ),
            _law(
                "groups without spread, shaped",
                _shaped_and_filtered,
                "the filter looks at shaped rewards, in which lengths alone make a spread",
                {**COARSE, **FILTER, **SHAPED},
            ),
            _law(
                "dynamic sampling",
                _dynamic,
                "the test inverted, prompts drawn and never judged, groups cut",
                {**COARSE, "grpo__use_dynamic_sampling": True},
            ),
            _law("penalty on length", _shaping, "a buffer off by one, lengths of other rows, a sign", SHAPED),
        ),
    ),
)
