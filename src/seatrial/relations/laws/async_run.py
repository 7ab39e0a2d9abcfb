"""R14, R19: with rollouts beside the training no group is lost, none is used twice, none is older than it may be."""

from __future__ import annotations

from collections import Counter
from typing import Any

from seatrial.relations.engine import Law, Measure, Relation
from seatrial.relations.laws.run_logprobs import sampling_error
from seatrial.relations.run_records import RunRecord, StepRecord
from seatrial.relations.runs import RunCase, making

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
    "policy__generation__max_new_tokens": 20,
}
"""Completions that are long beside a step, so that weights change while they are sampled."""
DYNAMIC = {**ASYNC, "grpo__use_dynamic_sampling": True, "data__num_train": 24}


def _counted(wrong: list[str], what: str) -> Measure:
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
    return _counted(wrong, "groups that were lost, or used twice")


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
    return _counted(wrong, "prompts without their groups")


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
    return _counted(wrong, "differences from the rows of the synchronous loop")


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
    return _counted(wrong, "groups without a signal, or steps that are not full")


def _ages(stack: Any, case: RunCase) -> Measure:
    record = case.record(stack)
    oldest = record.options["grpo.async_grpo.max_trajectory_age_steps"]
    wrong = [
        f"step {step.step}, row {index}: weights of step {row.weight_version}"
        for step in record.steps
        for index, row in enumerate(step.rows)
        if not 0 <= step.step - 1 - row.weight_version <= oldest
    ]
    return _counted(wrong, "rows trained on that are too old, or of weights that there were not")


def _ages_are_logged(stack: Any, case: RunCase) -> Measure:
    """The log's mean age is that of the rows."""
    record = case.record(stack)
    wrong = []
    for step in record.steps:
        ages = [step.step - 1 - row.weight_version for row in step.rows]
        logged = step.metrics.get("avg_trajectory_age", float("nan"))
        if not abs(logged - sum(ages) / len(ages)) <= 1e-6:
            wrong.append(f"step {step.step}: logged {logged}, rows {sum(ages) / len(ages)}")
    return _counted(wrong, "steps whose logged age is not that of their rows")


def _ahead(stack: Any, case: RunCase) -> Measure:
    """From the second step on something was sampled while the step before was trained."""
    record = case.record(stack)
    behind = sum(
        any(row.weight_version < step.step - 1 for row in step.rows) for step in record.steps if step.step > 1
    )
    return Measure(
        error=float(len(record.steps) - 1 - behind), bound=0, what="steps that waited for their own rollouts"
    )


def _weights_arrive(stack: Any, case: RunCase) -> Measure:
    """Later steps are sampled by later weights: a sampler that is never synced stays at 0."""
    record = case.record(stack)
    newest = [max(row.weight_version for row in step.rows) for step in record.steps]
    still = sum(
        after <= before
        for before, after in zip(newest[_oldest(record) :], newest[_oldest(record) + 1 :], strict=False)
    )
    return Measure(
        error=float(still), bound=0, what=f"steps without newer weights than the step before ({newest})"
    )


def _oldest(record: RunRecord) -> int:
    return int(record.options["grpo.async_grpo.max_trajectory_age_steps"])


def _segments(stack: Any, case: RunCase) -> Measure:
    """Segments begin with the first token, their versions rise, and none is newer than the trainer."""
    record = case.record(stack)
    wrong = []
    for step in record.steps:
        for index, row in enumerate(step.rows):
            places = [first for first, _, _ in row.segments]
            versions = [version for _, _, version in row.segments]
            rising = all(list(values) == sorted(set(values)) for values in (places, versions))
            whole = places[0] == 0 and places[-1] < len(row.ids) and versions[0] == row.weight_version
            if not (rising and whole and versions[-1] <= step.step - 1):
                wrong.append(f"step {step.step}, row {index}: {row.segments}")
    return _counted(wrong, "rows whose segments are not of rising weights")


def _oldest_row_counts(stack: Any, case: RunCase) -> Measure:
    """A group is as old as its oldest row."""
    record = case.record(stack)
    wrong = []
    for step in record.steps:
        oldest: dict[int, int] = {}
        for row in step.rows:
            oldest[row.prompt_id] = min(oldest.get(row.prompt_id, row.weight_version), row.weight_version)
        wrong += [
            f"step {step.step}, group {group.number}: {group.weight_version}, its rows {oldest[group.prompt_id]}"
            for group in step.groups
            if group.fate == "trained" and not group.weight_version >= oldest[group.prompt_id]
        ]
        taken = [group.weight_version for group in step.groups if group.fate == "trained"]
        if min(taken) != min(oldest.values()):
            wrong.append(f"step {step.step}: groups from {min(taken)}, rows from {min(oldest.values())}")
    return _counted(wrong, "groups that are not as old as their oldest row")


def _law(name: str, options: dict[str, Any], measure: Any, suspects: str) -> Law:
    return Law(
        name=name, make=making(tuple(options), **options), measure=measure, seeded=False, suspects=suspects
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
            _law("each group once", ASYNC, _used_once, "a buffer that hands out twice, or drops in silence"),
            _law(
                "each group once, older",
                OLDER,
                _used_once,
                "a watermark that is passed, an eviction uncounted",
            ),
            _law("each group once, replicas", REPLICAS, _used_once, "replies that go to another request"),
            _law(
                "each group once, in flight",
                IN_FLIGHT,
                _used_once,
                "what was given up is lost, or comes twice",
            ),
            _law(
                "prompts become groups",
                REPLICAS,
                _prompts_accounted,
                "prompts that are drawn and never sampled",
            ),
            _law(
                "the first step is the synchronous one",
                REPLICAS,
                _first_step,
                "rows of another, streams shared",
            ),
            _law(
                "dynamic sampling fills steps",
                DYNAMIC,
                _signal,
                "filters at the wrong rewards, groups cut apart",
            ),
        ),
    ),
    Relation(
        id="R19.async",
        name="async-run-knows-its-weights",
        component="run",
        statement="Rows name the weights that sampled each token, none is older than allowed, and weights do arrive.",
        catalogue=("SB237", "SB282", "SB289"),
        cost="CPU, seconds",
        laws=(
            _law(
                "ages within the bound",
                ASYNC,
                _ages,
                "a window that is a step too wide, weights never synced",
            ),
            _law("ages within the bound, older", OLDER, _ages, "an age that is counted in syncs"),
            _law(
                "ages within the bound, in flight",
                IN_FLIGHT,
                _ages,
                "the version at the end in place of the start",
            ),
            _law("ages are logged", OLDER, _ages_are_logged, "an age of the buffer in place of the batch"),
            _law("rollouts run ahead", ASYNC, _ahead, "a loop that is called asynchronous and waits"),
            _law("weights arrive", OLDER, _weights_arrive, "a sync that is left out, or every second one"),
            _law(
                "log-probabilities are of the named weights",
                REPLICAS,
                sampling_error,
                "one replica without a sync",
            ),
            _law("segments rise", IN_FLIGHT, _segments, "segments of another row, versions of the end"),
            _law(
                "log-probabilities are of their segments",
                IN_FLIGHT,
                sampling_error,
                "a cache of older weights",
            ),
            _law(
                "a group is as old as its oldest row",
                IN_FLIGHT,
                _oldest_row_counts,
                "the youngest row's version",
            ),
        ),
    ),
)
