"""Verdict on the rollouts under way that each checkpoint of an asynchronous run holds, against its record of groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.options import options_of
from seatrial.trials.sensors.paths import read_object
from seatrial.trials.sensors.run_record import INFO
from seatrial.trials.sensors.saved import saved_steps

KEPT = ("trained", "unused")
"""Fates of groups that no filter dropped."""


def state_is_of_the_groups(
    evidence: RunEvidence, groups: Sequence[Mapping[str, Any]]
) -> tuple[list[str], str, int]:
    """Each checkpoint counts the groups that were drawn and dropped by then, and holds those that later steps take.

    Raises:
        NotGivenError: the run saves no such state, or weights change while completions are sampled, so that a group may
            be under way when it is saved.
        BlockedError: a file cannot be read.
    """
    options, job = options_of(evidence), evidence.job
    evidence.need("checkpoints")
    if options["grpo.async_grpo.in_flight_weight_updates"]:
        raise NotGivenError("weights change in flight: groups are under way when a checkpoint is saved")
    if job.checkpoint_dir is None or job.first_step > 1:
        raise NotGivenError("the run saves no checkpoints of its own steps")
    wrong, steps = [], []
    for step in saved_steps(job.checkpoint_dir, job.checkpoint_form):
        path = job.checkpoint_dir / job.checkpoint_form.split("/")[0].format(step=step) / INFO
        state = read_object(path).get("parts", {}).get("rollouts") if path.exists() else None
        if state is not None:
            steps.append(step)
            found = _wrong_state(step, state, groups, options["grpo.num_prompts_per_step"])
            wrong += [f"step_{step}: {what}" for what in found]
    if not steps:
        raise NotGivenError("the run saves no state of its rollouts")
    return wrong[:3], f"checkpoints of the steps {steps}", len(steps)


def _wrong_state(
    step: int, state: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], per_batch: int
) -> Iterator[str]:
    """Yield what is wrong with the state of one checkpoint."""
    collector, buffer = state["collector"], state["collector"]["buffer"]
    dropped = [group["number"] for group in groups if group["fate"] not in KEPT and group["step"] <= step]
    put = collector["num_batches"] * per_batch
    counts = {
        "trained steps": (collector["trained_steps"], step),
        "dropped groups": (collector["num_dropped"], len(dropped)),
        "groups that were put": (buffer["next_number"], put),
        "prompts that were drawn": (state["prompts"]["num_drawn"], put),
    }
    for what, (said, right) in counts.items():
        if said != right:
            yield f"it counts {said} {what}, by its record there are {right}"
    waiting = {
        group["number"]: group["prompt_id"]
        for group in groups
        if group["number"] < put and (group["step"] > step or group["fate"] == "unused")
    }
    held = {group["number"]: group["examples"][0]["prompt_id"] for group in buffer["groups"]}
    if held != waiting:
        yield f"it holds the groups {sorted(held)}, {sorted(waiting)} wait for later steps, by number and prompt"
