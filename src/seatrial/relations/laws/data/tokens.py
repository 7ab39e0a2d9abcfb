"""R15: trained tokens are the sampled tokens, each with its own mask, log-probability and reward."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from seatrial.relations.cases import Rollout, rollout_for
from seatrial.relations.facts import facts_of, needs_ends_inside
from seatrial.relations.law import Measure, Relation
from seatrial.relations.records import BuiltBatch, Row
from seatrial.relations.worst import Worst

BATCH = Relation(
    id="R15.batch",
    name="token-identity",
    component="batch_builder",
    statement="A batch holds the sampled ids, a mask that is 1 exactly on them, and their own log-probabilities.",
    catalogue=(
        "SB001 SB002 SB006 SB007 SB012 SB016 SB021 SB026 SB027 SB028 SB030 SB032 SB050 SB053 SB054 SB059 "
        "SB062 SB084 SB132 SB145 SB153 SB274"
    ),
    cost="CPU, milliseconds",
    cases=rollout_for,
)


@BATCH.law("ids", "truncation, tokens decoded and encoded again")
def ids_are_the_sampled_ones(stack: Any, case: Rollout) -> Measure:
    """Check that the real ids of each row are its prompt and its completion."""
    built = stack.make_batch(case.rows)
    errors = [
        f"row {index}: {ids} instead of {[*row.prompt_ids, *row.completion_ids]}"
        for index, row in enumerate(case.rows)
        if (ids := _row_tokens(built, index)[0]) != [*row.prompt_ids, *row.completion_ids]
    ]
    return Measure.count(errors, "rows with other ids")


def _row_tokens(built: BuiltBatch, row: int) -> tuple[list[int], list[int], list[float]]:
    """Return ids, loss mask and log-probabilities of the real tokens of a row."""
    real = built.attention_mask_BS[row].bool()
    return (
        built.input_ids_BS[row][real].tolist(),
        [int(value) for value in built.loss_mask_BS[row][real].tolist()],
        built.sampling_logprobs_BS[row][real].tolist(),
    )


@BATCH.law("loss mask", "a mask by comparing ids with the pad id, a span off by one, tool output trained")
@BATCH.law(
    "loss mask, with tokens after an end token",
    "a mask that ends at the first end token, as if every row were one turn",
    cases=partial(rollout_for, ends_inside=True),
    excluded=needs_ends_inside,
)
def loss_mask_is_exact(stack: Any, case: Rollout) -> Measure:
    """Check that the loss mask is 1 on sampled tokens, and 0 on prompts, tool output and padding."""
    built = stack.make_batch(case.rows)
    errors = []
    for index, row in enumerate(case.rows):
        wanted = [0] * len(row.prompt_ids) + list(row.completion_mask)
        outside = float(built.loss_mask_BS[index][~built.attention_mask_BS[index].bool()].abs().sum())
        if _row_tokens(built, index)[1] != wanted or outside:
            errors.append(
                f"row {index}: {_row_tokens(built, index)[1]} instead of {wanted}, {outside:g} in padding"
            )
    return Measure.count(errors, "rows with other loss masks")


@BATCH.law(
    "long rows",
    "an undeclared truncation, from the wrong side, of ids without their mask",
    cases=partial(rollout_for, longest_prompt=20, longest_completion=40),
)
def long_rows_are_whole_or_cut(stack: Any, case: Rollout) -> Measure:
    """Check that a long row is whole, or cut at the declared length: the end is missing in ids and mask."""
    built, limit = stack.make_batch(case.rows), facts_of(stack).max_length
    errors = []
    for index, row in enumerate(case.rows):
        kept = len(row.completion_ids) if limit is None else max(0, limit - len(row.prompt_ids))
        ids, mask, _ = _row_tokens(built, index)
        wanted = [*row.prompt_ids, *row.completion_ids[:kept]]
        trained = [0] * len(row.prompt_ids) + list(row.completion_mask[:kept])
        if (ids, mask) != (wanted, trained):
            errors.append(
                f"row {index}: {len(ids)} ids, {sum(mask)} trained; {len(wanted)}, {sum(trained)} due"
            )
    return Measure.count(
        errors,
        f"rows with other ids or masks, prompts up to 20 and completions up to 40 tokens, limit {limit}",
    )


@BATCH.law("log-probabilities", "log-probabilities shifted by one or aligned to the other side")
def logprobs_belong_to_their_tokens(stack: Any, case: Rollout) -> Measure:
    """Compare each token's sampling log-probability in the batch with the sampler's."""
    built = stack.make_batch(case.rows)
    worst = Worst(place="none")
    for index, row in enumerate(case.rows):
        given = _row_tokens(built, index)[2][len(row.prompt_ids) :]
        for token, (value, sampled) in enumerate(zip(given, row.completion_mask, strict=True)):
            difference = abs(value - row.sampling_logprobs[token]) if sampled else 0.0
            worst.add(difference, f"row {index}, token {token}")
    return Measure(
        error=worst.error, bound=1e-5, what=f"log-probability against the sampler's, at {worst.place}"
    )


@BATCH.law("reward and prompt of a row", "rows sorted by length and not put back")
def rows_keep_reward_and_prompt(stack: Any, case: Rollout) -> Measure:
    """Check that each row of the batch has its own reward and prompt id."""
    built = stack.make_batch(case.rows)
    errors = [
        f"row {index}"
        for index, row in enumerate(case.rows)
        if not (abs(float(built.rewards_B[index]) - row.reward) <= 1e-5 * max(1, abs(row.reward)))
        or int(built.prompt_ids_B[index]) != row.prompt_id
    ]
    return Measure.count(errors, "rows with other reward or prompt")


@BATCH.law(
    "ids equal to pad and end",
    "a mask by comparing ids with the pad id (pad equal to end hides the end token)",
)
def special_ids_train(stack: Any, case: Rollout) -> Measure:
    """Check that completions of pad and end ids alone train on each of these."""
    rows = tuple(_only_special(row, case) for row in case.rows if any(row.completion_mask))
    built = stack.make_batch(rows)
    errors = [
        f"row {index}: {sum(mask)} of {sum(row.completion_mask)}"
        for index, row in enumerate(rows)
        if sum(mask := _row_tokens(built, index)[1]) != sum(row.completion_mask)
    ]
    return Measure.count(errors, "completions of pad and end ids that do not train on every token")


def _only_special(row: Row, case: Rollout) -> Row:
    length = len(row.completion_ids)
    return replace(row, completion_ids=(case.pad_id,) * (length - 1) + (case.eos_id,))
