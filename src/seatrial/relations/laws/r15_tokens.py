"""R15: the tokens trained on are the tokens sampled, each with its own mask, log-probability and reward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seatrial.relations.cases import Rollout, make_rollout
from seatrial.relations.engine import Law, Measure, Relation
from seatrial.relations.records import BuiltBatch, Row
from seatrial.relations.worst import is_worse


def _make(stack: Any, seed: int, tidy: bool) -> Rollout:
    return make_rollout(seed, tidy=tidy)


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
