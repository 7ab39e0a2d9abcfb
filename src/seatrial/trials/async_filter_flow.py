"""Level 2: rollouts during training lose no group, and no group is trained twice or too late."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.targets.base import TrainingJob
from seatrial.trials.base import Claim, TrialContext
from seatrial.trials.grpo_smoke import LEDGER_SENSORS, sharp_model, train_and_judge
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.async_state import state_is_of_the_groups
from seatrial.trials.sensors.filters import buffer_holds_what_waits
from seatrial.trials.sensors.guards import GUARDS_HOLD
from seatrial.trials.sensors.options import options_of, steps_of, updates_of
from seatrial.trials.sensors.paths import run_facts, sensor
from seatrial.trials.sensors.recomputed import FILTERED, RECOMPUTED
from seatrial.trials.sensors.run import (
    FINITE,
    GRADIENT_POSITIVE,
    LOG_UNDAMAGED,
    PARAMETERS_MOVED,
    STEPS_REACHED,
    Sensor,
    check_sensor,
    not_given,
)
from seatrial.verdict import Outcome, Verdict

AGE = "train/max_trajectory_age"
AHEAD = check_sensor(
    f'max(data["{AGE}"]) >= 1', "rollouts run ahead of the training: the run is asynchronous"
)
NONE_LOST = check_sensor('max(data["train/num_lost_replicas"]) == 0', "no generation replica was lost")
VERSIONS = "ledger: weight versions are in order"
ROWS = "ledger: every trained row is there, once"
CLOSED = "every group is trained on once, or has a reason not to be"
SEPARATED = "stale groups are dropped, and no other"
NONE_STALE = "no group is stale without updates in flight"
MAY_BE_STALE = {
    "in_flight_weight_updates": "groups may begin with older weights",
    "drop_zero_variance": "groups may wait for a step that others fill",
    "drop_longer_than": "groups may wait for a step that others fill",
}
"""Options of `grpo.async_grpo` with which a sound run may drop stale groups, and why."""


def groups_of(job: TrainingJob) -> list[dict[str, Any]]:
    """Return what became of each group, step by step, and then what the run left unused.

    Raises:
        BlockedError: a file cannot be read.
    """
    found: list[dict[str, Any]] = []
    names = [f"group_data_step{step}.jsonl" for step in range(1, job.num_steps + 1)]
    for name in (*names, f"unused_group_data_step{job.num_steps}.jsonl"):
        path: Path = job.ledger_dir / name
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            continue  # a step without its file has no groups, which the verdicts count
        except OSError as error:
            raise BlockedError(f"{path}: {error.strerror}") from error
        try:
            found += [json.loads(line) for line in lines]
        except ValueError as error:
            raise BlockedError(f"{path} is not whole: {error}") from error
    return found


def groups_closed(evidence: RunEvidence) -> Verdict:
    """Group numbers run from 0 without a gap and without one twice; each step trained on as many as it has."""
    job = evidence.job
    groups = groups_of(job)
    numbers = Counter(group["number"] for group in groups)
    twice = sorted(number for number, num in numbers.items() if num > 1)
    lost = sorted(set(range(max(numbers, default=-1) + 1)) - numbers.keys())
    trained = Counter(group["step"] for group in groups if group["fate"] == "trained")
    wanted = job.num_rows_per_step // job.num_generations_per_prompt
    uneven = [step for step in range(1, job.num_steps + 1) if trained[step] != wanted]
    wrong = len(twice) + len(lost) + len(uneven)
    return Verdict(
        name=CLOSED,
        outcome=Outcome.FAIL if wrong or not groups else Outcome.PASS,
        reason=f"{len(groups)} groups, {sum(trained.values())} trained on; twice {twice[:4]}, without a fate "
        f"{lost[:4]}, steps without {wanted} groups {uneven[:4]}",
        value=float(wrong),
        bound="0 groups twice, lost, or missing in a step",
        num_samples=len(groups),
    )


def groups_are_the_rows(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """The groups that a step trained on are those of its rows: the same prompts, begun with the same weights.

    A version counts updates and a group's weights are named by their step: the two are one where each step is one
    update. Where new weights reach completions that are being sampled, rows of a group may begin with different ones.
    """
    options, rows = options_of(evidence), steps_of(evidence)
    groups = [group for group in groups_of(evidence.job) if group["fate"] == "trained"]
    one_version = not options["grpo.async_grpo.in_flight_weight_updates"] and all(
        len(updates_of(of, options)) == 1 for of in rows.values()
    )
    wrong = []
    for step, of in rows.items():
        recorded = Counter(
            (group["prompt_id"], group["weight_step"] if one_version else None)
            for group in groups
            if group["step"] == step
        )
        trained = Counter(
            (row.prompt_id, row.weight_version if one_version else None)
            for row in of[:: evidence.job.num_generations_per_prompt]
        )
        if recorded != trained:
            wrong.append(
                f"step {step}: groups are recorded as {dict(recorded)}, the rows have {dict(trained)}"
            )
    return wrong[:3], f"{len(groups)} groups", len(groups)


def stale_separated(evidence: RunEvidence) -> Verdict:
    """A group is dropped for its age exactly where it is older than the job allows."""
    job = evidence.job
    options = run_facts(evidence).get("config", {}).get("grpo", {}).get("async_grpo", {})
    # A job of several updates a step states no lag, which counts updates; the age of groups is in steps in any case.
    oldest = options.get("max_trajectory_age_steps", 0) if job.max_lag is None else job.max_lag
    groups = [group for group in groups_of(job) if group["fate"] in ("trained", "stale")]
    wrong = [
        group["number"]
        for group in groups
        if (0 <= group["step"] - 1 - group["weight_step"] <= oldest) != (group["fate"] == "trained")
    ]
    return Verdict(
        name=SEPARATED,
        outcome=Outcome.FAIL if wrong or not groups else Outcome.PASS,
        reason=f"{sum(group['fate'] == 'stale' for group in groups)} of {len(groups)} groups were dropped as older "
        f"than {oldest} steps; on the wrong side: {wrong[:4]}",
        value=float(len(wrong)),
        bound="0 groups on the wrong side",
        num_samples=len(groups),
    )


def none_stale(evidence: RunEvidence) -> Verdict:
    """No group is too old for the step that it was sampled for: rollouts run ahead by at most what the job allows.

    Not judged where new weights reach completions that are being sampled, since a group may begin with older ones, and
    where filters drop groups, since the next ones fill the step, and the rest of these may wait for too long.
    """
    options = run_facts(evidence).get("config", {}).get("grpo", {}).get("async_grpo", {})
    groups = groups_of(evidence.job)
    stale = [group for group in groups if group["fate"] == "stale"]
    for option, why in MAY_BE_STALE.items():
        if options.get(option):
            return not_given(NONE_STALE, f"grpo.async_grpo.{option}: {why}")
    first = f", first group {stale[0]['number']} of version {stale[0]['weight_step']}" if stale else ""
    return Verdict(
        name=NONE_STALE,
        outcome=Outcome.FAIL if stale or not groups else Outcome.PASS,
        reason=f"{len(stale)} of {len(groups)} groups were sampled with weights more than {evidence.job.max_lag} "
        f"steps behind the step{first}: a generator misses syncs, or rollouts run too far ahead",
        value=float(len(stale)),
        bound="0 stale groups",
        num_samples=len(groups),
    )


BUFFER = sensor(
    "the buffer holds what waits for later steps",
    "groups that later steps take",
    lambda evidence: buffer_holds_what_waits(evidence, groups_of(evidence.job)),
)

STATE = sensor(
    "checkpoints: the rollouts under way are those that later steps take",
    "counts and groups of each checkpoint",
    lambda evidence: state_is_of_the_groups(evidence, groups_of(evidence.job)),
)
RECORDED = sensor(
    "the recorded groups are those of the rows", "prompts and versions, step by step", groups_are_the_rows
)

SENSORS: tuple[Sensor, ...] = (
    LOG_UNDAMAGED,
    STEPS_REACHED,
    FINITE,
    Sensor(CLOSED, groups_closed),
    Sensor(SEPARATED, stale_separated),
    Sensor(NONE_STALE, none_stale),
    BUFFER,
    STATE,
    RECORDED,
    AHEAD,
    NONE_LOST,
    GRADIENT_POSITIVE,
    PARAMETERS_MOVED,
    GUARDS_HOLD,
    *LEDGER_SENSORS,
    *RECOMPUTED,
)
"""Every check of the run, in order."""

CLAIMS = (
    Claim(text="every group is trained on once, or dropped for a reason", verdicts=(CLOSED, ROWS)),
    Claim(text="stale and fresh groups are separated exactly", verdicts=(SEPARATED, VERSIONS)),
    Claim(
        text="every generator gets each sync, and rollouts run ahead by at most the allowed steps",
        verdicts=(NONE_STALE,),
    ),
    Claim(text="the logged size of the buffer is that of the groups that wait", verdicts=(BUFFER.name,)),
    Claim(text="the record of groups is that of the rows", verdicts=(RECORDED.name,)),
    Claim(text="steps train on the groups that the filters leave", verdicts=(FILTERED.name,)),
    Claim(text="rollouts are sampled while the policy is trained", verdicts=(AHEAD.name,)),
    Claim(text="every trainable tensor moves", verdicts=(PARAMETERS_MOVED.name,)),
)


class AsyncFilterFlow:
    """A few steps of asynchronous GRPO, every group followed. A `seatrial.trials.base.Trial`."""

    name = "async-filter-flow"
    level = 2
    num_processes = 2
    summary = "GRPO with rollouts sampled during training by two engines in separate processes"
    proves = (
        "no group of completions is lost, trained on twice, or older than allowed; weights arrive meanwhile"
    )
    does_not_prove = (
        "that a lost part is survived (`seatrial chaos` does), speed, learning (level 6), several hosts"
    )

    def run(self, context: TrialContext) -> None:
        """Prepare, launch, collect, sense."""
        context.target.preflight()
        train_and_judge(
            context, "grpo-async", lambda job: list(SENSORS), lambda job: CLAIMS, sharp_model(context.target)
        )
