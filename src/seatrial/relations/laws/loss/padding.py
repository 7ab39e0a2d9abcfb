"""R3: padding changes nothing: neither its content, nor its amount, nor rows that are all padding."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from seatrial.relations.cases import Rollout, rollout_for, rollout_of_model
from seatrial.relations.facts import bound_of, needs_masked_rows
from seatrial.relations.law import Measure, Relation
from seatrial.relations.records import Row
from seatrial.relations.tensors import (
    counts_of,
    gradient_of,
    inputs_of,
    largest_gradient_difference,
    loss_difference,
)
from seatrial.relations.worst import Worst

LOSS_BOUND = 1e-10
GRADIENT_BOUND = 2e-5
POISONS = (1e4, -1e4, math.nan, math.inf)
TIDY_POISONS = (-1.0,)


CATALOGUE = (
    "SB007 SB008 SB012 SB017 SB057 SB080 SB081 SB114 SB132 SB145 SB151 SB155 SB160 SB162 SB171 SB184 "
    "SB195 SB204 SB209 SB281 SB367 SB382"
)

LOSS = Relation(
    id="R3.loss",
    name="loss-ignores-padding",
    component="policy_loss",
    statement="Neither the content of masked positions, NaN included, nor their number changes loss or gradient.",
    catalogue=CATALOGUE,
    cost="CPU, milliseconds",
    cases=rollout_for,
)

STEP = Relation(
    id="R3.step",
    name="step-ignores-padding",
    component="train_step",
    statement="A long row that must not train leaves the gradient of the other rows as it was.",
    catalogue=CATALOGUE,
    cost="CPU, seconds",
    cases=rollout_of_model,
    excluded=needs_masked_rows,
)


@LOSS.law(
    "content of masked positions",
    "a mask that multiplies (NaN times 0 is NaN), an exponential taken before the mask",
)
def padding_content_is_ignored(stack: Any, case: Rollout) -> Measure:
    """Compare loss and gradient with other values in masked positions, NaN and infinity included."""
    counts = counts_of(case.rows)
    loss, gradient_BT, _ = _evaluate(stack, case, counts)
    worst = Worst(place="nothing")
    for poison in TIDY_POISONS if case.tidy else POISONS:
        poisoned, poisoned_BT, mask_BT = _evaluate(stack, case, counts, poison=poison)
        inside = torch.where(mask_BT.bool(), poisoned_BT, 0.0)
        outside = float(poisoned_BT[~mask_BT.bool()].abs().sum())
        error = loss_difference(poisoned, loss, inside, gradient_BT, outside)
        worst.add(error, f"{poison} in the masked positions")
    return Measure(
        error=worst.error,
        bound=bound_of(stack, LOSS_BOUND),
        what=f"loss or gradient with {worst.place}, relative difference",
    )


def _evaluate(
    stack: Any, case: Rollout, counts: tuple[float, float], **changes: Any
) -> tuple[float, torch.Tensor, torch.Tensor]:
    inputs = inputs_of(case, counts=counts, **changes)
    loss = stack.policy_loss(inputs)
    return float(loss.detach()), gradient_of(loss, inputs), inputs.mask_BT


@LOSS.law("amount of padding", "a mean over the padded width")
def padding_width_is_ignored(stack: Any, case: Rollout) -> Measure:
    """Compare loss and gradient with nine more padded columns."""
    counts = counts_of(case.rows)
    loss, gradient_BT, _ = _evaluate(stack, case, counts)
    wider, wider_BT, _ = _evaluate(stack, case, counts, extra_columns=9)
    error = loss_difference(wider, loss, wider_BT[:, : gradient_BT.shape[1]], gradient_BT)
    return Measure(
        error=error, bound=bound_of(stack, LOSS_BOUND), what="loss or gradient with nine more padded columns"
    )


@LOSS.law(
    "rows that must not train",
    "a row without tokens divided by zero or by a floor of one, counted as a sequence",
    excluded=needs_masked_rows,
)
def masked_rows_are_ignored(stack: Any, case: Rollout) -> Measure | None:
    """Put a fully masked, longer row in front; loss and gradient of the others stay the same."""
    if case.tidy:
        return None
    counts = counts_of(case.rows)
    loss, gradient_BT, _ = _evaluate(stack, case, counts)
    rows = (_empty_row(case), *case.rows)
    given, given_BT, _ = _evaluate(stack, replace(case, rows=rows), counts)
    own_BT = given_BT[1:, : gradient_BT.shape[1]]
    error = loss_difference(given, loss, own_BT, gradient_BT, float(given_BT[0].abs().sum()))
    return Measure(
        error=error,
        bound=bound_of(stack, LOSS_BOUND),
        what="loss or gradient with a fully masked, longer row in front",
    )


def _empty_row(case: Rollout) -> Row:
    """Return a row that must not train: twice as long as the longest, or as long as the others when tidy."""
    longest = max(case.rows, key=lambda row: len(row.completion_ids))
    if case.tidy:
        return replace(longest, completion_mask=(0,) * len(longest.completion_ids))
    twice = {
        name: getattr(longest, name) * 2
        for name in ("completion_ids", "sampling_logprobs", "old_logprobs", "ref_logprobs")
    }
    return replace(longest, **twice, completion_mask=(0,) * (2 * len(longest.completion_ids)))


@STEP.law(
    "padding next to a long masked row",
    "attention to padding, positions counted through padding, counts of padded tokens",
)
def step_ignores_a_masked_row(stack: Any, case: Rollout) -> Measure:
    """Add a long row that must not train: every other row gets padding, and the gradient stays the same."""
    plain = stack.gradients(case.rows, [list(range(len(case.rows)))])
    rows = (*case.rows, _empty_row(case))
    given = stack.gradients(rows, [list(range(len(rows)))])
    error, name = largest_gradient_difference(given.gradients, plain.gradients)
    return Measure(error=error, bound=GRADIENT_BOUND, what=f"gradient of {name} next to a long masked row")
