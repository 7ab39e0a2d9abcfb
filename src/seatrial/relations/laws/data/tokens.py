"""R15: the tokens trained on are the tokens sampled, each with its own mask, log-probability and reward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seatrial.relations.cases import Rollout, rollout_for
from seatrial.relations.facts import facts_of, needs_ends_inside
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.records import BuiltBatch, Row
from seatrial.relations.worst import is_worse


def _make(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy)


def _make_with_ends_inside(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy, ends_inside=True)


def _make_long(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy, longest_prompt=20, longest_completion=40)


def _row_tokens(built: BuiltBatch, row: int) -> tuple[list[int], list[int], list[float]]:
    """Return ids, loss mask and log-probabilities of the real tokens of a row."""
    real = built.attention_mask_BS[row].bool()
    return (
        built.input_ids_BS[row][real].tolist(),
        [int(value) for value in built.loss_mask_BS[row][real].tolist()],
        built.sampling_logprobs_BS[row][real].tolist(),
    )


def _mismatches(errors: list[str], what: str) -> Measure:
    where = errors[0] if errors else "none"
    return Measure(error=float(len(errors)), bound=0, what=f"rows whose {what} differ ({where})")


def _ids(stack: Any, case: Rollout) -> Measure:
    built = stack.make_batch(case.rows)
    errors = [
        f"row {index}: {ids} instead of {[*row.prompt_ids, *row.completion_ids]}"
        for index, row in enumerate(case.rows)
        if (ids := _row_tokens(built, index)[0]) != [*row.prompt_ids, *row.completion_ids]
    ]
    return _mismatches(errors, "ids")


def _mask(stack: Any, case: Rollout) -> Measure:
    built = stack.make_batch(case.rows)
    errors = []
    for index, row in enumerate(case.rows):
        wanted = [0] * len(row.prompt_ids) + list(row.completion_mask)
        outside = float(built.loss_mask_BS[index][~built.attention_mask_BS[index].bool()].abs().sum())
        if _row_tokens(built, index)[1] != wanted or outside:
            errors.append(
                f"row {index}: {_row_tokens(built, index)[1]} instead of {wanted}, {outside:g} in padding"
            )
    return _mismatches(errors, "loss masks")


def _long_rows(stack: Any, case: Rollout) -> Measure:
    """A row is whole, or cut at the declared length to its prompt and the start of its completion, mask and all."""
    built, limit = stack.make_batch(case.rows), facts_of(stack).max_length
    errors = []
    for index, row in enumerate(case.rows):
        room = len(row.completion_ids) if limit is None else max(0, limit - len(row.prompt_ids))
        ids, mask, _ = _row_tokens(built, index)
        wanted = [*row.prompt_ids, *row.completion_ids[:room]]
        trained = [0] * len(row.prompt_ids) + list(row.completion_mask[:room])
        if (ids, mask) != (wanted, trained):
            errors.append(
                f"row {index}: {len(ids)} ids, {sum(mask)} trained; {len(wanted)}, {sum(trained)} due"
            )
    return _mismatches(errors, f"ids or masks, prompts to 20 and completions to 40 tokens, limit {limit},")


def _logprobs(stack: Any, case: Rollout) -> Measure:
    built = stack.make_batch(case.rows)
    worst, place = 0.0, "none"
    for index, row in enumerate(case.rows):
        given = _row_tokens(built, index)[2][len(row.prompt_ids) :]
        for token, (value, sampled) in enumerate(zip(given, row.completion_mask, strict=True)):
            difference = abs(value - row.sampling_logprobs[token]) if sampled else 0.0
            if is_worse(difference, worst):
                worst, place = difference, f"row {index}, token {token}"
    return Measure(
        error=worst, bound=1e-5, what=f"sampler's log-probability beside another token, at {place}"
    )


def _row_facts(stack: Any, case: Rollout) -> Measure:
    built = stack.make_batch(case.rows)
    errors = [
        f"row {index}"
        for index, row in enumerate(case.rows)
        if not (abs(float(built.rewards_B[index]) - row.reward) <= 1e-5 * max(1, abs(row.reward)))
        or int(built.prompt_ids_B[index]) != row.prompt_id
    ]
    return _mismatches(errors, "reward or prompt")


def _special_ids(stack: Any, case: Rollout) -> Measure:
    """Completions made of pad and end ids alone train on every one of them."""
    rows = tuple(_only_special(row, case) for row in case.rows if any(row.completion_mask))
    built = stack.make_batch(rows)
    errors = [
        f"row {index}: {sum(mask)} of {sum(row.completion_mask)}"
        for index, row in enumerate(rows)
        if sum(mask := _row_tokens(built, index)[1]) != sum(row.completion_mask)
    ]
    return _mismatches(errors, "numbers of trained tokens, of completions made of pad and end ids,")


def _only_special(row: Row, case: Rollout) -> Row:
    length = len(row.completion_ids)
    return replace(row, completion_ids=(case.pad_id,) * (length - 1) + (case.eos_id,))


RELATIONS = (
    Relation(
        id="R15.batch",
        name="token-identity",
        component="batch_builder",
        statement="A batch holds the sampled ids, a mask that is 1 exactly on them, and their own log-probabilities.",
        catalogue=(
            "SB001", "SB002", "SB006", "SB007", "SB012", "SB016", "SB021", "SB026", "SB027", "SB028", "SB030",
            "SB032", "SB050", "SB053", "SB054", "SB059", "SB062", "SB084", "SB132", "SB145", "SB153", "SB274",
        ),
        cost="CPU, milliseconds",
        laws=(
            Law(name="ids", make=_make, measure=_ids, suspects="truncation, tokens decoded and encoded again"),
            Law(
                name="loss mask",
                make=_make,
                measure=_mask,
                suspects="a mask by comparing ids with the pad id, a span off by one, tool output trained",
            ),
            Law(
                name="loss mask, with tokens after an end token",
                make=_make_with_ends_inside,
                measure=_mask,
                excluded=needs_ends_inside,
                suspects="a mask that ends at the first end token, as if every row were one turn",
            ),
            Law(
                name="long rows",
                make=_make_long,
                measure=_long_rows,
                suspects="a truncation nobody declared, from the wrong side, of ids without their mask",
            ),
            Law(
                name="log-probabilities",
                make=_make,
                measure=_logprobs,
                suspects="log-probabilities shifted by one or aligned to the other side",
            ),
            Law(
                name="reward and prompt of a row",
                make=_make,
                measure=_row_facts,
                suspects="rows sorted by length and not put back",
            ),
            Law(
                name="ids equal to pad and end",
                make=_make,
                measure=_special_ids,
                suspects="a mask by comparing ids with the pad id (pad equal to end hides the end token)",
            ),
        ),
    ),
)  # fmt: skip
