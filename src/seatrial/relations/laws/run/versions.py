"""R19: with rollouts beside the training rows name the weights that sampled them, and none is older than it may be."""

from __future__ import annotations

from typing import Any

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.run.asynchronous import ASYNC, IN_FLIGHT, OLDER, REPLICAS, async_law, counted
from seatrial.relations.laws.run.logprob_errors import sampling_error
from seatrial.relations.records.run import RunRecord
from seatrial.relations.runs import RunCase


def _ages(stack: Any, case: RunCase) -> Measure:
    record = case.record(stack)
    oldest = _oldest(record)
    wrong = [
        f"step {step.step}, row {index}: weights of step {row.weight_version}"
        for step in record.steps
        for index, row in enumerate(step.rows)
        if not 0 <= step.step - 1 - row.weight_version <= oldest
    ]
    return counted(wrong, "rows trained on that are too old, or of weights that there were not")


def _dropped_are_too_old(stack: Any, case: RunCase) -> Measure:
    """What the bound on age keeps is trained on: of what was dropped as stale every group is older."""
    record = case.record(stack)
    wrong = [
        f"step {step.step}: group {group.number}, weights of step {group.weight_version}"
        for step in record.steps
        for group in step.groups
        if group.fate == "stale" and not step.step - 1 - group.weight_version > _oldest(record)
    ]
    return counted(wrong, "groups that were dropped as stale, and are not too old")


def _ages_are_logged(stack: Any, case: RunCase) -> Measure:
    """The log's mean age is that of the rows."""
    record = case.record(stack)
    wrong = []
    for step in record.steps:
        ages = [step.step - 1 - row.weight_version for row in step.rows]
        logged = step.metrics.get("avg_trajectory_age", float("nan"))
        if not abs(logged - sum(ages) / len(ages)) <= 1e-6:
            wrong.append(f"step {step.step}: logged {logged}, rows {sum(ages) / len(ages)}")
    return counted(wrong, "steps whose logged age is not that of their rows")


def _ahead(stack: Any, case: RunCase) -> Measure:
    """From the second step on something was sampled while the step before was trained."""
    record = case.record(stack)
    behind = sum(
        any(row.weight_version < step.step - 1 for row in step.rows) for step in record.steps if step.step > 1
    )
    return Measure(
        error=float(len(record.steps) - 1 - behind), bound=0, what="steps that waited for their own rollouts"
    )


def _as_far_ahead(stack: Any, case: RunCase) -> Measure:
    """Samples are as old as they may be somewhere in the run: an age that is allowed is room for the sampler."""
    record = case.record(stack)
    ages = [step.step - 1 - row.weight_version for step in record.steps for row in step.rows]
    unused = max(_oldest(record) - max(ages), 0)
    return Measure(
        error=float(unused), bound=0, what=f"steps of age that were allowed and never used ({max(ages)})"
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
    return counted(wrong, "rows whose segments are not of rising weights")


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
    return counted(wrong, "groups that are not as old as their oldest row")


RELATIONS = (
    Relation(
        id="R19.async",
        name="async-run-knows-its-weights",
        component="run",
        statement="Rows name the weights that sampled each token, none is older than allowed, and weights do arrive.",
        catalogue=("SB237", "SB282", "SB289"),
        cost="CPU, seconds",
        laws=(
            async_law(
                "ages within the bound",
                ASYNC,
                _ages,
                "a window that is a step too wide, weights never synced",
            ),
            async_law("ages within the bound, older", OLDER, _ages, "an age that is counted in syncs"),
            async_law(
                "ages within the bound, in flight",
                IN_FLIGHT,
                _ages,
                "the version at the end in place of the start",
            ),
            async_law(
                "what is dropped is too old",
                OLDER,
                _dropped_are_too_old,
                "an age in versions and a bound in steps",
            ),
            async_law(
                "what is dropped is too old, in flight",
                IN_FLIGHT,
                _dropped_are_too_old,
                "a bound that is a step too narrow",
            ),
            async_law(
                "ages are logged", OLDER, _ages_are_logged, "an age of the buffer in place of the batch"
            ),
            async_law("rollouts run ahead", ASYNC, _ahead, "a loop that is called asynchronous and waits"),
            async_law(
                "rollouts run as far ahead as they may", OLDER, _as_far_ahead, "an option that nothing reads"
            ),
            async_law(
                "weights arrive", OLDER, _weights_arrive, "a sync that is left out, or every second one"
            ),
            async_law(
                "log-probabilities are of the named weights",
                REPLICAS,
                sampling_error,
                "one replica without a sync",
            ),
            async_law("segments rise", IN_FLIGHT, _segments, "segments of another row, versions of the end"),
            async_law(
                "log-probabilities are of their segments",
                IN_FLIGHT,
                sampling_error,
                "a cache of older weights",
            ),
            async_law(
                "a group is as old as its oldest row",
                IN_FLIGHT,
                _oldest_row_counts,
                "the youngest row's version",
            ),
        ),
    ),
)
