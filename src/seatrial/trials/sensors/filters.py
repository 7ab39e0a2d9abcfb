"""Verdicts on which rows a step trains on: filters, dynamic sampling, lengths, and what waits in the buffer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.drawn import EQUAL, wrongly_drawn
from seatrial.trials.sensors.options import mask_of, options_of, steps_of, verified_reward
from seatrial.trials.sensors.paths import by_step

MAX_TURNS: Mapping[str, int] = {"lookup": 2}
"""Turns of an episode of a built-in environment where its arguments do not set them, as documented."""


def rows_are_filtered(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Each step trains on the rows that its filters leave, of lengths that the options allow, and counts the others.

    Raises:
        NotGivenError: the target gives no rows, or does not say how the run is configured.
    """
    options = options_of(evidence)
    wrong, number, left_out = [], 0, 0
    for step, rows in steps_of(evidence).items():
        flat = _flat_rows(rows)
        cut = {row.index for row in rows if row.finish_reason == "length"}
        dropped: set[int] = set()
        dropped |= cut if options["grpo.overlong_filtering"] else set()
        dropped |= flat if options["grpo.zero_variance_filter"] else set()
        left_out += len(dropped)
        for row in rows:
            number += 1
            if any(mask_of(row)) == (row.index in dropped):
                said = "is left out" if row.index not in dropped else "is in the loss"
                wrong.append(f"step {step} row {row.index} {said}, against the filters")
            wrong += [f"step {step} row {row.index} {what}" for what in _too_long(row, options)]
        if flat and _drops_flat_groups(options):
            wrong.append(
                f"step {step}: rows {sorted(flat)[:4]} are of groups whose rewards are all equal, which are dropped"
            )
        counts = {"overlong_filtering": len(cut), "zero_variance_filter": len(flat)}
        for name, count in counts.items():
            tag = f"train/num_{name.removesuffix('_filtering').removesuffix('_filter')}_filtered"
            if options[f"grpo.{name}"] and by_step(evidence, tag).get(step) != count:
                wrong.append(
                    f"step {step}: {tag} is {by_step(evidence, tag).get(step)}, the rows have {count}"
                )
        wrong += _sampled_in_vain(evidence, step, options)
    wrong += wrongly_drawn(evidence, steps_of(evidence), options)
    return wrong[:3], f"{number} rows, {left_out} left out of the loss", number


def buffer_holds_what_waits(
    evidence: RunEvidence, groups: Sequence[Mapping[str, Any]]
) -> tuple[list[str], str, int]:
    """At each step the logged size of the buffer is at most what may wait then: the groups that later steps take.

    A group waits at a step if it was begun by then and is trained on, dropped or left over later. Rollouts run ahead by
    `max_trajectory_age_steps`, to the last step at most; filters make up for what they drop by less than a step more.

    Raises:
        NotGivenError: the target does not say how the run is configured.
    """
    options = options_of(evidence)
    job = evidence.job
    per_step = options["grpo.num_prompts_per_step"]
    age = options["grpo.async_grpo.max_trajectory_age_steps"]
    wrong, logged = [], by_step(evidence, "train/buffer_size")
    for step in range(1, job.num_steps + 1):
        waiting = sum(
            group["weight_step"] < step and (step < group["step"] or group["fate"] == "unused")
            for group in groups
        )
        ahead = (min(step + age, job.num_steps) - step) * per_step + per_step * _is_made_up_for(groups)
        most = min(waiting, ahead)
        size = logged.get(step, math.nan)
        if not 0 <= size <= most:
            wrong.append(f"step {step}: the buffer is logged with {size:g} groups, at most {most} can wait")
    return wrong[:3], f"{job.num_steps} sizes, at most {max(logged.values(), default=0):g}", len(logged)


def _is_made_up_for(groups: Sequence[Mapping[str, Any]]) -> bool:
    return any(group["fate"] not in ("trained", "unused") for group in groups)


def _flat_rows(rows: Sequence[LedgerRow]) -> set[int]:
    """Return the places of rows whose group has equal rewards."""
    groups: dict[tuple[int, int], list[LedgerRow]] = {}
    for row in rows:
        groups.setdefault(row.group_key, []).append(row)
    return {
        row.index
        for of in groups.values()
        if max(map(verified_reward, of)) - min(map(verified_reward, of)) <= EQUAL
        for row in of
    }


def _drops_flat_groups(options: Mapping[str, Any]) -> bool:
    is_async = options["grpo.async_grpo.enabled"] and options["grpo.async_grpo.drop_zero_variance"]
    return bool(options["grpo.use_dynamic_sampling"] or is_async)


def _too_long(row: LedgerRow, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a row's lengths."""
    limits = {
        "policy.max_total_sequence_length": len(row.token_ids or ()),
        "grpo.async_grpo.drop_longer_than": len(row.token_ids or ())
        if options["grpo.async_grpo.enabled"]
        else 0,
        "policy.generation.max_new_tokens": 0 if options["data.environment"] else len(row.sampled_ids),
    }
    bound = _max_turns(options)
    if bound is not None and any(mask_of(row)) and len(row.turns) > bound:
        yield f"has {len(row.turns)} turns, more than the {bound} of data.environment={options['data.environment']}"
    for name, length in limits.items():
        if options[name] is not None and length > options[name]:
            yield f"has {length} tokens, more than {name}={options[name]}"
    reached = {"policy.max_total_sequence_length", "policy.generation.max_new_tokens"}
    if row.finish_reason != "length" or options["data.environment"]:
        return
    if all(options[name] != limits[name] for name in reached):
        yield f"is cut after {limits['policy.generation.max_new_tokens']} tokens, and no limit is reached"


def _max_turns(options: Mapping[str, Any]) -> int | None:
    """Return the turns that an episode may have; None where the environment's own bound is not known."""
    bound = options.get("data.environment_args.max_turns", MAX_TURNS.get(options["data.environment"] or ""))
    return None if bound is None else int(bound)


def _sampled_in_vain(evidence: RunEvidence, step: int, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what shows that dynamic sampling continued after the step was full."""
    if not options["grpo.use_dynamic_sampling"]:
        return
    tags = {
        name: by_step(evidence, f"train/dynamic_sampling_num_{name}").get(step, math.nan)
        for name in ("gen_batches", "dropped_groups", "discarded_valid_samples")
    }
    prompts = options["grpo.num_prompts_per_step"]
    drawn = math.ceil(prompts * options["grpo.batch_multiplier"])
    discarded = tags["discarded_valid_samples"] / options["grpo.num_generations_per_prompt"]
    sampled = prompts + tags["dropped_groups"] + discarded
    if not 1 <= tags["gen_batches"] <= (options["grpo.dynamic_sampling_max_gen_batches"] or 10):
        yield f"step {step}: {tags['gen_batches']:g} generation batches"
    if not sampled <= drawn * tags["gen_batches"]:
        yield f"step {step}: {sampled:g} groups from {tags['gen_batches']:g} batches of {drawn}"
    # What is discarded is of the last batch, of which the step took one group at least.
    if not discarded < drawn:
        yield (
            f"step {step}: {discarded:g} groups with a signal were discarded, a whole batch of {drawn}: it was sampled "
            "for a full step"
        )
