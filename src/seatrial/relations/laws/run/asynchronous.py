"""R14: with rollouts beside the training no group is lost, and none is used twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.records.run import StepRecord
from seatrial.relations.runs import RunCase, run_cases

ASYNC = {
    "grpo__async_grpo__enabled": True,
    "policy__generation__colocated__enabled": False,
    "grpo__max_num_steps": 4,
    "data__num_train": 11,
}
"""As many steps as show an age of two, and prompts that do not divide into steps."""
OLDER = {**ASYNC, "grpo__async_grpo__max_trajectory_age_steps": 2}
REPLICAS = {**ASYNC, "grpo__async_grpo__num_replicas": 3}
IN_FLIGHT = {
    **OLDER,
    "grpo__async_grpo__in_flight_weight_updates": True,
    "grpo__max_num_steps": 6,
    "policy__generation__max_new_tokens": 112,
    "policy__generation__stop_token_ids": (),
}
"""Completions that are long beside a step and do not end early, so that weights change while they are sampled."""
DYNAMIC = {**ASYNC, "grpo__use_dynamic_sampling": True, "data__num_train": 24}


def counted(wrong: list[str], what: str) -> Measure:
    """Return how many things are wrong, with the first of them."""
    return Measure(error=float(len(wrong)), bound=0, what=f"{what} ({(wrong or ['none'])[0]})")


def _groups(step: StepRecord, fate: str) -> Counter[int]:
    return Counter(group.prompt_id for group in step.groups if group.fate == fate)


def _used_once(stack: Any, case: RunCase) -> Measure:
    """Every number up to the last has one fate, and the rows of a step are those of the groups it says it took."""
    record = case.record(stack)
    fates = Counter(group.number for step in record.steps for group in step.groups)
    wrong = [f"group {number} has {num} fates" for number, num in fates.items() if num != 1]
    wrong += [f"group {number} has no fate" for number in range(max(fates, default=0)) if number not in fates]
    size = record.options["grpo.num_generations_per_prompt"]
    for step in record.steps:
        rows = Counter(row.prompt_id for row in step.rows)
        taken = _groups(step, "trained")
        wrong += [
            f"step {step.step}: {rows[prompt]} rows of prompt {prompt} for {taken[prompt]} groups of {size}"
            for prompt in rows.keys() | taken.keys()
            if rows[prompt] != size * taken[prompt]
        ]
    return counted(wrong, "groups that were lost, or used twice")


def _prompts_accounted(stack: Any, case: RunCase) -> Measure:
    """Each prompt that was served became a group that was trained on or dropped, as often as it was served."""
    record = case.record(stack)
    served = Counter(prompt for step in record.steps for prompt in step.prompts_served)
    became = Counter(group.prompt_id for step in record.steps for group in step.groups)
    wrong = [
        f"prompt {prompt} served {served[prompt]} times, {became[prompt]} groups"
        for prompt in sorted(served.keys() | became.keys())
        if served[prompt] != became[prompt]
    ]
    return counted(wrong, "prompts without their groups")


def _first_step(stack: Any, case: RunCase) -> Measure:
    """Nothing is older yet: the first step has the rows of the synchronous loop, whatever engine sampled them."""
    ahead = case.record(stack).steps[0]
    plain = case.record(
        stack, grpo__async_grpo__enabled=False, grpo__async_grpo__num_replicas=1, grpo__max_num_steps=1
    ).steps[0]
    wrong = [
        f"row {index}: {name}"
        for index, (ours, theirs) in enumerate(zip(ahead.rows, plain.rows, strict=False))
        for name in ("prompt_id", "prompt_ids", "ids", "completion", "finish_reason", "mask")
        if getattr(ours, name) != getattr(theirs, name)
    ]
    wrong += [f"{len(ahead.rows)} rows"] * (len(ahead.rows) != len(plain.rows))
    return counted(wrong, "differences from the rows of the synchronous loop")


def _signal(stack: Any, case: RunCase) -> Measure:
    """Dynamic sampling trains on groups whose verified rewards differ, and on a full step of them."""
    record = case.record(stack)
    wrong = []
    for step in record.steps:
        rewards: dict[int, set[float]] = {}
        for row in step.rows:
            rewards.setdefault(row.prompt_id, set()).add(row.reward_before_shaping)
        wrong += [f"step {step.step}, prompt {prompt}" for prompt, found in rewards.items() if len(found) < 2]
        if len(rewards) != record.options["grpo.num_prompts_per_step"]:
            wrong.append(f"step {step.step}: {len(rewards)} groups")
    return counted(wrong, "groups without a signal, or steps that are not full")


def _weights_change(stack: Any, case: RunCase) -> Measure:
    """Rows were under way when new weights came, and went on with them."""
    rows = [row for step in case.record(stack).steps for row in step.rows]
    several = sum(len({version for _, _, version in row.segments}) > 1 for row in rows)
    return Measure(
        error=float(several == 0),
        bound=0,
        what=f"runs in which no row has tokens of two versions ({several} of {len(rows)} rows have)",
    )


def _may_not_change(stack: Any) -> str | None:
    """Return why weights need not change in flight: rows may all be sampled before a step has ended."""
    return None if getattr(stack, "changes_in_flight", False) else "changes_in_flight=False"


def async_law(name: str, options: dict[str, Any], measure: Any, suspects: str) -> Law:
    """Return a law of a run with these options."""
    return Law(
        name=name, make=run_cases(tuple(options), **options), measure=measure, seeded=False, suspects=suspects
    )


RELATIONS = (
    Relation(
        id="R14.async",
        name="async-run-loses-no-group",
        component="run",
        statement="With rollouts beside the training every group is trained on once, or dropped for a reason.",
        catalogue=("SB282", "SB289"),
        cost="CPU, seconds",
        laws=(
            async_law(
                "each group once", ASYNC, _used_once, "a buffer that hands out twice, or drops in silence"
            ),
            async_law(
                "each group once, older",
                OLDER,
                _used_once,
                "a watermark that is passed, an eviction uncounted",
            ),
            async_law(
                "each group once, replicas", REPLICAS, _used_once, "replies that go to another request"
            ),
            async_law(
                "each group once, in flight",
                IN_FLIGHT,
                _used_once,
                "what was given up is lost, or comes twice",
            ),
            replace(
                async_law(
                    "weights change in flight",
                    IN_FLIGHT,
                    _weights_change,
                    "new weights that wait until nothing is sampled",
                ),
                excluded=_may_not_change,
            ),
            async_law(
                "prompts become groups",
                REPLICAS,
                _prompts_accounted,
                "prompts that are drawn and never sampled",
            ),
            async_law(
                "the first step is the synchronous one",
                REPLICAS,
                _first_step,
                "rows of another, streams shared",
            ),
            async_law(
                "dynamic sampling fills steps",
                DYNAMIC,
                _signal,
                "filters at the wrong rewards, groups cut apart",
            ),
        ),
    ),
)
