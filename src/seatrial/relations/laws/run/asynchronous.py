"""R14.async, R19.async: asynchronous rollouts lose no group, and no row is sampled with weights that are too old."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.run.logprobs import age_limit, ages_within_bound, sampling_error
from seatrial.relations.not_served import NotServed
from seatrial.relations.records.run import RunRow, StepRecord
from seatrial.relations.runs import RunCase, run_cases

ASYNC = {
    "grpo__async_grpo__enabled": True,
    "policy__generation__colocated__enabled": False,
    "grpo__max_num_steps": 4,
    "data__num_train": 11,
}
"""Enough steps for an age of two, and prompts that do not divide into steps."""
OLDER = {**ASYNC, "grpo__async_grpo__max_trajectory_age_steps": 2}
REPLICAS = {**ASYNC, "grpo__async_grpo__num_replicas": 3}
IN_FLIGHT = {
    **OLDER,
    "grpo__async_grpo__in_flight_weight_updates": True,
    "grpo__max_num_steps": 6,
    "policy__generation__max_new_tokens": 112,
    "policy__generation__stop_token_ids": (),
}
"""Completions that take long compared to a step and do not end early, so that weights change while they are sampled."""
asynchronous, older, replicas, in_flight, dynamic, varied, short = (
    run_cases(**options)
    for options in (
        ASYNC,
        OLDER,
        REPLICAS,
        IN_FLIGHT,
        {**ASYNC, "grpo__use_dynamic_sampling": True, "data__num_train": 24},
        {
            **ASYNC,
            "grpo__async_grpo__drop_zero_variance": True,
            "grpo__max_num_steps": 2,
            "data__num_train": 24,
            "data__verifier": "coarse",
        },
        {
            **ASYNC,
            "grpo__async_grpo__drop_longer_than": 18,
            "grpo__num_generations_per_prompt": 2,
            "grpo__max_num_steps": 2,
            "data__num_train": 24,
        },
    )
)

GROUPS = Relation(
    id="R14.async",
    name="async-run-loses-no-group",
    component="run",
    statement="With asynchronous rollouts every group is trained on once, or dropped for a reason.",
    catalogue="SB282 SB289",
    cost="CPU, seconds",
    seeded=False,
)
VERSIONS = Relation(
    id="R19.async",
    name="async-run-knows-its-weights",
    component="run",
    statement="Rows name the weights that sampled each token, none is older than allowed, and weights do arrive.",
    catalogue="SB237 SB282 SB289",
    cost="CPU, seconds",
    seeded=False,
)


@GROUPS.law(
    "each group once", "a buffer that returns a group twice, or drops it silently", cases=asynchronous
)
@GROUPS.law("each group once, older", "a watermark that is passed, an eviction uncounted", cases=older)
@GROUPS.law("each group once, replicas", "replies that go to another request", cases=replicas)
@GROUPS.law("each group once, in flight", "what was given up is lost, or comes twice", cases=in_flight)
def each_group_once(stack: Any, case: RunCase) -> Measure:
    """Check that every group number has one fate, and that a step's rows are those of the groups it took."""
    record = case.record(stack)
    fates = Counter(group.number for step in record.steps for group in step.groups)
    wrong = [f"group {number} has {num} fates" for number, num in fates.items() if num != 1]
    wrong += [f"group {number} has no fate" for number in range(max(fates, default=0)) if number not in fates]
    size = record.options["grpo.num_generations_per_prompt"]
    for step in record.steps:
        rows = Counter(row.prompt_id for row in step.rows)
        taken = Counter(group.prompt_id for group in step.groups if group.fate == "trained")
        wrong += [
            f"step {step.step}: {rows[prompt]} rows of prompt {prompt} for {taken[prompt]} groups of {size}"
            for prompt in rows.keys() | taken.keys()
            if rows[prompt] != size * taken[prompt]
        ]
    return Measure.count(wrong, "groups that were lost, or used twice")


def _needs_changes_in_flight(stack: Any) -> str | None:
    """Return the declaration by which weights need not change in flight: all rows may be sampled before a step ends."""
    return None if getattr(stack, "changes_in_flight", False) else "changes_in_flight=False"


@GROUPS.law(
    "weights change in flight",
    "new weights that wait until nothing is sampled",
    cases=in_flight,
    excluded=_needs_changes_in_flight,
)
def weights_change_in_flight(stack: Any, case: RunCase) -> Measure:
    """Check that some row was being sampled when new weights arrived, and continued with them.

    On a busy machine all rows of a run may be sampled before: up to three runs are tried.
    """
    rows = [row for _, _, row in case.record(stack).rows()]
    several = _of_two_versions(rows)
    for _ in range(2):
        if not several:
            rows = [row for _, _, row in case.repeat(stack).rows()]
            several = _of_two_versions(rows)
    return Measure(
        error=several == 0,
        bound=0,
        what=f"runs in which no row has tokens of two versions ({several} of {len(rows)} rows have)",
    )


def _of_two_versions(rows: Sequence[RunRow]) -> int:
    return sum(len({version for _, _, version in row.segments}) > 1 for row in rows)


@GROUPS.law("prompts become groups", "prompts that are drawn and never sampled", cases=replicas)
def prompts_become_groups(stack: Any, case: RunCase) -> Measure:
    """Check that each prompt became a group, trained on or dropped, as often as it was served."""
    record = case.record(stack)
    served = Counter(prompt for step in record.steps for prompt in step.prompts_served)
    became = Counter(group.prompt_id for step in record.steps for group in step.groups)
    wrong = [
        f"prompt {prompt} served {served[prompt]} times, {became[prompt]} groups"
        for prompt in sorted(served.keys() | became.keys())
        if served[prompt] != became[prompt]
    ]
    return Measure.count(wrong, "prompts without their groups")


@GROUPS.law("the first step is the synchronous one", "rows of another, random streams shared", cases=replicas)
def first_step_is_synchronous(stack: Any, case: RunCase) -> Measure:
    """Compare the first step, in which no weights are old, with the rows of the synchronous loop."""
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
    return Measure.count(wrong, "differences from the rows of the synchronous loop")


@GROUPS.law("groups without spread are dropped", "an option that nothing reads", cases=varied)
def groups_without_spread_are_dropped(stack: Any, case: RunCase) -> Measure:
    """Check that no step trains on a group of equal rewards where such groups are dropped."""
    wrong = [line for step in case.record(stack).steps for line in _flat(step, _rewards(step))]
    return Measure.count(wrong, "groups of equal rewards that a step trains on")


@GROUPS.law(
    "the buffer holds what later steps take", "groups of the running step counted as waiting", cases=older
)
def buffer_holds_what_later_steps_take(stack: Any, case: RunCase) -> Measure:
    """Check that the logged size of the buffer is at most the number of groups that no step has taken by then.

    Raises:
        NotServed: the size is not logged.
    """
    record = case.record(stack)
    sizes = {step.step: step.metrics["buffer_size"] for step in record.steps if "buffer_size" in step.metrics}
    if not sizes:
        raise NotServed("buffer_size is not logged")
    wrong = []
    for step, size in sizes.items():
        left = sum(
            other.step > step or group.fate == "unused" for other in record.steps for group in other.groups
        )
        if not 0 <= size <= left:
            wrong.append(f"step {step}: {size:.0f} groups, {left} of them are taken later or never")
    return Measure.count(wrong, "steps whose buffer holds more groups than are left")


@GROUPS.law("long groups are dropped", "lengths of completions alone, of the first row alone", cases=short)
def long_groups_are_dropped(stack: Any, case: RunCase) -> Measure:
    """Check that no trained row is longer than the option allows, prompt included.

    Raises:
        NotServed: no group of this run was dropped for its length.
    """
    record = case.record(stack)
    limit = record.options["grpo.async_grpo.drop_longer_than"]
    wrong = [
        f"{place}: {len(row.prompt_ids)} and {len(row.ids)} tokens"
        for place, _, row in record.rows()
        if len(row.prompt_ids) + len(row.ids) > limit
    ]
    if not wrong and not any(group.fate == "too long" for step in record.steps for group in step.groups):
        raise NotServed("no group of this run is too long")
    return Measure.count(wrong, f"trained rows of more than {limit} tokens")


def _rewards(step: StepRecord) -> dict[int, set[float]]:
    """Return the different rewards of the verifier by prompt."""
    rewards: dict[int, set[float]] = {}
    for row in step.rows:
        rewards.setdefault(row.prompt_id, set()).add(row.reward_before_shaping)
    return rewards


def _flat(step: StepRecord, rewards: Mapping[int, set[float]]) -> list[str]:
    """Return a line for each prompt whose rows have equal rewards."""
    return [f"step {step.step}, prompt {prompt}" for prompt, found in rewards.items() if len(found) < 2]


@GROUPS.law("dynamic sampling fills steps", "filters at the wrong rewards, groups cut apart", cases=dynamic)
def dynamic_sampling_fills_steps(stack: Any, case: RunCase) -> Measure:
    """Check that a step has its full number of groups, each with different rewards of the verifier."""
    record = case.record(stack)
    wrong = []
    for step in record.steps:
        rewards = _rewards(step)
        wrong += _flat(step, rewards)
        if len(rewards) != record.options["grpo.num_prompts_per_step"]:
            wrong.append(f"step {step.step}: {len(rewards)} groups")
    return Measure.count(wrong, "groups without a signal, or steps that are not full")


VERSIONS.law(
    "ages within the bound", "a window that is a step too wide, weights never synced", cases=asynchronous
)(ages_within_bound)
VERSIONS.law("ages within the bound, older", "an age that is counted in syncs", cases=older)(
    ages_within_bound
)
VERSIONS.law(
    "ages within the bound, in flight", "the version at the end in place of the start", cases=in_flight
)(ages_within_bound)


@VERSIONS.law("what is dropped is too old", "an age in versions and a bound in steps", cases=older)
@VERSIONS.law("what is dropped is too old, in flight", "a bound that is a step too narrow", cases=in_flight)
def dropped_groups_are_too_old(stack: Any, case: RunCase) -> Measure:
    """Check that every group that was dropped as stale is older than the bound."""
    record = case.record(stack)
    wrong = [
        f"step {step.step}: group {group.number}, weights of step {group.weight_version}"
        for step in record.steps
        for group in step.groups
        if group.fate == "stale" and not step.step - 1 - group.weight_version > age_limit(record)
    ]
    return Measure.count(wrong, "groups that were dropped as stale, and are not too old")


@VERSIONS.law("ages are logged", "an age of the buffer in place of the batch", cases=older)
def ages_are_logged(stack: Any, case: RunCase) -> Measure:
    """Compare the logged mean age of each step with that of its rows."""
    wrong = []
    for step in case.record(stack).steps:
        mean, logged = sum(_ages(step)) / len(step.rows), step.metrics.get("avg_trajectory_age", float("nan"))
        if not abs(logged - mean) <= 1e-6:
            wrong.append(f"step {step.step}: logged {logged}, rows {mean}")
    return Measure.count(wrong, "steps whose logged age is not that of their rows")


def _ages(step: StepRecord) -> list[int]:
    return [step.step - 1 - row.weight_version for row in step.rows]


@VERSIONS.law("rollouts run ahead", "a loop that is called asynchronous and waits", cases=asynchronous)
def rollouts_run_ahead(stack: Any, case: RunCase) -> Measure:
    """Check that every step after the first has rows that were sampled during the step before."""
    waited = [f"step {step.step}" for step in case.record(stack).steps[1:] if max(_ages(step)) <= 0]
    return Measure.count(waited, "steps that waited for their own rollouts")


@VERSIONS.law("rollouts run as far ahead as they may", "an option that nothing reads", cases=older)
def allowed_age_is_used(stack: Any, case: RunCase) -> Measure:
    """Check that some rows have the largest age that is allowed."""
    record = case.record(stack)
    oldest = max(age for step in record.steps for age in _ages(step))
    return Measure(
        error=max(age_limit(record) - oldest, 0),
        bound=0,
        what=f"steps of age that were allowed and never used ({oldest})",
    )


@VERSIONS.law("weights arrive", "a sync that is left out, or every second one", cases=older)
def weights_arrive(stack: Any, case: RunCase) -> Measure:
    """Check that later steps are sampled with later weights: a sampler that is never synced stays at 0."""
    record = case.record(stack)
    newest = [max(row.weight_version for row in step.rows) for step in record.steps][age_limit(record) :]
    return Measure(
        error=sum(after <= before for before, after in pairwise(newest)),
        bound=0,
        what=f"steps without newer weights than the step before ({newest})",
    )


VERSIONS.law("log-probabilities are of the named weights", "one replica without a sync", cases=replicas)(
    sampling_error
)


@VERSIONS.law("segment versions increase", "segments of another row, versions of the end", cases=in_flight)
def segment_versions_increase(stack: Any, case: RunCase) -> Measure:
    """Check that segments begin with the first token, and that versions increase up to the trainer's at most."""
    wrong = []
    for place, step, row in case.record(stack).rows():
        firsts, _, versions = zip(*row.segments, strict=True)
        rising = all(list(values) == sorted(set(values)) for values in (firsts, versions))
        whole = firsts[0] == 0 and firsts[-1] < len(row.ids) and versions[0] == row.weight_version
        if not (rising and whole and versions[-1] <= step.step - 1):
            wrong.append(f"{place}: {row.segments}")
    return Measure.count(wrong, "rows whose segments do not have increasing versions")


VERSIONS.law("log-probabilities are of their segments", "a cache of older weights", cases=in_flight)(
    sampling_error
)


@VERSIONS.law("a group is as old as its oldest row", "the youngest row's version", cases=in_flight)
def group_is_as_old_as_its_oldest_row(stack: Any, case: RunCase) -> Measure:
    """Compare the version of each trained group with the oldest of its rows."""
    wrong = []
    for step in case.record(stack).steps:
        oldest: dict[int, int] = {}
        for row in step.rows:
            oldest[row.prompt_id] = min(oldest.get(row.prompt_id, row.weight_version), row.weight_version)
        trained = [group for group in step.groups if group.fate == "trained"]
        wrong += [
            f"step {step.step}, group {group.number}: {group.weight_version}, its rows {oldest[group.prompt_id]}"
            for group in trained
            if not group.weight_version >= oldest[group.prompt_id]
        ]
        first = min(group.weight_version for group in trained)
        if first != min(oldest.values()):
            wrong.append(f"step {step.step}: groups from {first}, rows from {min(oldest.values())}")
    return Measure.count(wrong, "groups that are not as old as their oldest row")
