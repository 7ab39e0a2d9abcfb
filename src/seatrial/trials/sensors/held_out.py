"""Verdict on validations: when they take place, their rows, and whether their tokens are drawn as configured.

Nothing of the stack is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from seatrial.evidence.ledger.laws.tokens import ends_as_said, tokens_valid
from seatrial.evidence.ledger.schema import LedgerFacts, LedgerRow
from seatrial.targets.base import TrainingJob
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.draws import Draws, are_all_drawn, is_filtered
from seatrial.trials.sensors.first_step import (
    LOGITS,
    logprobs_of,
    not_drawn,
    scaled_logits,
)
from seatrial.trials.sensors.options import loop_of, options_of
from seatrial.trials.sensors.paths import by_step, first_step_of_command, model_facts, sensor
from seatrial.trials.sensors.prompts import validation_rows
from seatrial.trials.sensors.saved_models import SavedModels
from seatrial.trials.sensors.scoring import placeholder_of


def validations_hold(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Validations take place when they are due, and draw each held-out prompt's completion as configured.

    Raises:
        NotGivenError: the run validates nothing, or the target does not say how it is configured.
        BlockedError: a file or a checkpoint cannot be read.
    """
    options = options_of(evidence)
    evidence.need_whole_log()
    loop = loop_of(options)
    found = validation_rows(evidence)
    due = _due(evidence.job, options, loop)
    if not due and not found:
        raise NotGivenError("the run validates nothing")
    wrong = []
    begun = 0 if first_step_of_command(evidence) == 1 else min(due, default=0)
    for what, steps in (
        ("rows", set(found)),
        ("validation/reward", {*by_step(evidence, "validation/reward")}),
    ):
        # A resumed run's folder and log hold those of the start before it, too.
        if {step for step in steps if step >= begun} != due:
            wrong.append(f"validations are due at the steps {sorted(due)}, {what} are of {sorted(steps)}")
    has_media = placeholder_of(model_facts(evidence.job.initial_model)) is not None
    rows = {step: [_row(row, has_media=has_media) for row in of] for step, of in found.items()}
    for step, of in rows.items():
        wrong += _wrong_places(step, of, options, loop)
        if not options["data.environment"]:
            wrong += _wrong_ends(step, of, options, evidence.job)
    drawn, number = _wrong_draws(evidence, rows, options, loop)
    wrong += drawn
    total = sum(map(len, rows.values()))
    return wrong[:3], f"{len(rows)} validations of {total} rows, {number} tokens drawn again", total


HELD_OUT_ROWS = sensor(
    "validations: at the steps that are due, drawn as configured",
    "whole rows, of the weights after their step",
    validations_hold,
)


def _due(job: TrainingJob, options: Mapping[str, Any], loop: str) -> set[int]:
    """Return the steps with a validation; 0 is before the first."""
    period = options[f"{loop}.val_period"]
    steps = range(job.first_step, job.num_steps + 1)
    due = {step for step in steps if period and step % period == 0}
    due |= {job.num_steps} if options[f"{loop}.val_at_end"] else set()
    return due | ({0} if options[f"{loop}.val_at_start"] and job.first_step == 1 else set())


def _row(row: Mapping[str, Any], *, has_media: bool) -> LedgerRow:
    """Return a row of a validation as one that trains on all of its completion.

    A prompt with an image or a sound holds the name of a token that has no text.
    """
    ids, length = tuple(row["token_ids"]), int(row["prompt_length"])
    return LedgerRow(
        step=int(row["step"]),
        index=int(row["index"]),
        prompt_id=int(row["prompt_id"]),
        prompt=None if has_media else row["prompt"],
        completion=row["completion"],
        answer=row["answer"],
        token_ids=ids,
        prompt_length=length,
        loss_mask=(0,) * length + (1,) * (len(ids) - length),
        reward=float(row["reward"]),
        finish_reason=row["finish_reason"],
    )


def _wrong_places(
    step: int, rows: Sequence[LedgerRow], options: Mapping[str, Any], loop: str
) -> Iterator[str]:
    if [row.index for row in rows] != list(range(len(rows))) or any(row.step != step for row in rows):
        yield f"the rows of the validation of step {step} are not numbered from 0, or are of another step"
    held, most = options.get("data.num_validation"), options[f"{loop}.max_val_samples"]
    if len(rows) > most or (held is not None and len(rows) != min(held, most)):
        yield f"the validation of step {step} has {len(rows)} rows; {held} are held out, and at most {most} are used"


def _wrong_ends(
    step: int, rows: Sequence[LedgerRow], options: Mapping[str, Any], job: TrainingJob
) -> Iterator[str]:
    """Yield rows whose tokens are not those of their texts, or that do not end as they say."""
    ends = options["policy.generation.stop_token_ids"]
    facts = LedgerFacts(
        byte_level=job.byte_level,
        vocabulary_size=job.vocabulary_size,
        end_ids=None if ends is None else frozenset(ends),
    )
    for law in (tokens_valid, ends_as_said):
        yield from (f"validation: {fault}" for fault in law(rows, facts).faults)
    most = options["policy.generation.max_new_tokens"]
    longest = options["policy.max_total_sequence_length"]
    for row in rows:
        length, whole = len(row.sampled_ids), len(row.token_ids or ())
        if length > most or (row.finish_reason == "length" and length < most and whole != longest):
            yield f"validation: {row.where()} is {row.finish_reason} after {length} tokens of {most}"


def _wrong_draws(
    evidence: RunEvidence, rows: Mapping[int, Sequence[LedgerRow]], options: Mapping[str, Any], loop: str
) -> tuple[list[str], int]:
    """Return what is wrong with the tokens of validations whose weights are known, and the number of tokens."""
    try:
        models = SavedModels(evidence, options)
    except NotGivenError:
        return [], 0
    precision = evidence.job.precision
    if not models.are_the_samplers or options["data.environment"]:
        return [], 0
    wrong, number, first = [], 0, None
    for step, of in rows.items():
        if step not in models.steps:
            continue
        is_exact = are_all_drawn(of, options, precision) and not is_filtered(options)
        draws, model = Draws(are_all=is_exact), models.at(step)
        for row in of:
            for place, scaled_V in scaled_logits(model, row, options):
                number += 1
                token, at = row.sampled_ids[place], f"validation: {row.where()} token {place}"
                if options[f"{loop}.val_greedy"]:
                    if scaled_V[token] < np.max(scaled_V) - LOGITS[precision]:
                        wrong.append(f"{at} is {token}, not the likeliest")
                    continue
                wrong += [f"{at} {what}" for what in not_drawn(scaled_V, token, None, options, precision)]
                if not is_filtered(options):
                    draws.see(row, place, logprobs_of(scaled_V, row, place))
        said = [*draws.alike(), *draws.too_many(), *draws.unlikely()]
        if first is not None and is_exact and options["policy.generation.backend"] == "torch":
            said += draws.unrepeated(first)
        first = first or draws
        wrong += [f"validation of step {step}: {what}" for what in said]
    return wrong, number
