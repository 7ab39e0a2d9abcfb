"""R1: how a batch is split into micro-batches changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from seatrial.relations.cases import Rollout, make_rollout
from seatrial.relations.engine import Law, Measure, Relation
from seatrial.relations.records import Row
from seatrial.relations.tensors import (
    counts_of,
    gradient_of,
    inputs_of,
    largest_difference,
    largest_gradient_difference,
)
from seatrial.relations.worst import is_worse, largest

LOSS_BOUND = 1e-10
GRADIENT_BOUND = 2e-5  # float32 sums in another order
METRIC_BOUND = 1e-4


def splits(num_rows: int, *, tidy: bool = False) -> list[list[list[int]]]:
    """Return ways to split rows into micro-batches: singles, pairs, and very unequal parts; halves when tidy."""
    rows = list(range(num_rows))
    if tidy:
        return [[part for part in (rows[: num_rows // 2], rows[num_rows // 2 :]) if part]]
    third = max(1, num_rows // 3)
    return [
        [[row] for row in rows],
        [rows[start : start + 2] for start in range(0, num_rows, 2)],
        [part for part in (rows[:third], rows[third:]) if part],
    ]


def _make(stack: Any, seed: int, tidy: bool) -> Rollout:
    return make_rollout(seed, tidy=tidy)


def _make_for_model(stack: Any, seed: int, tidy: bool) -> Rollout:
    return make_rollout(seed, tidy=tidy, vocab_size=stack.vocab_size, num_prompts=3, num_generations=2)


def _loss_split(stack: Any, case: Rollout) -> Measure:
    whole_loss, whole_BT = _loss_of(stack, case, case.rows)
    worst, what = 0.0, "no split"
    for split in splits(len(case.rows), tidy=case.tidy):
        parts = [_loss_of(stack, case, [case.rows[row] for row in part]) for part in split]
        total = sum(loss for loss, _ in parts)
        gradients = [row for _, part_BT in parts for row in part_BT]
        gradient_BT = _pad_rows(gradients, whole_BT.shape[1])
        error = largest(
            (
                abs(total - whole_loss) / max(abs(whole_loss), 1e-3),
                largest_difference(gradient_BT, whole_BT),
            )
        )
        if is_worse(error, worst):
            worst, what = error, f"split into {[len(part) for part in split]} rows"
    return Measure(error=worst, bound=LOSS_BOUND, what=f"loss or gradient, {what}, relative difference")


def _loss_of(stack: Any, case: Rollout, rows: Sequence[Row]) -> tuple[float, torch.Tensor]:
    inputs = inputs_of(case, rows, counts=counts_of(case.rows))
    loss = stack.policy_loss(inputs)
    return float(loss.detach()), gradient_of(loss, inputs)


def _pad_rows(rows: Sequence[torch.Tensor], T: int) -> torch.Tensor:
    return torch.stack([torch.nn.functional.pad(row, (0, T - len(row))) for row in rows])


def _step_split(stack: Any, case: Rollout) -> Measure:
    whole = stack.gradients(case.rows, [list(range(len(case.rows)))])
    worst, what = 0.0, "no split"
    for split in splits(len(case.rows), tidy=case.tidy):
        given = stack.gradients(case.rows, split)
        error, name = largest_gradient_difference(given.gradients, whole.gradients)
        if is_worse(error, worst):
            worst, what = error, f"gradient of {name}, split into {[len(part) for part in split]} rows"
    return Measure(error=worst, bound=GRADIENT_BOUND, what=f"{what}, relative difference")


def _metrics_split(stack: Any, case: Rollout) -> Measure | None:
    whole = stack.gradients(case.rows, [list(range(len(case.rows)))]).metrics
    if not whole:
        return None
    worst, what = 0.0, "no metric"
    for split in splits(len(case.rows), tidy=case.tidy):
        given = stack.gradients(case.rows, split).metrics
        for name in sorted(whole.keys() | given.keys()):
            error = abs(given.get(name, float("nan")) - whole.get(name, float("nan"))) / max(
                1.0, abs(whole[name])
            )
            if is_worse(error, worst):
                worst, what = error, f"{name}, split into {[len(part) for part in split]} rows"
    return Measure(error=worst, bound=METRIC_BOUND, what=f"logged {what}, relative difference")


CATALOGUE = (
    "SB097", "SB111", "SB155", "SB156", "SB157", "SB158", "SB159", "SB164", "SB175", "SB181", "SB182", "SB185",
    "SB195", "SB199", "SB201", "SB202", "SB206", "SB207", "SB210", "SB215", "SB334", "SB371", "SB375", "SB377",
)  # fmt: skip

RELATIONS = (
    Relation(
        id="R1.loss",
        name="loss-ignores-micro-batches",
        component="policy_loss",
        statement="Losses and gradients of micro-batches add up to those of the whole batch, with unequal lengths.",
        catalogue=CATALOGUE,
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="losses of micro-batches add up",
                make=_make,
                measure=_loss_split,
                suspects="a mean over the micro-batch where the global count is due, padded length as the divisor",
            ),
        ),
    ),
    Relation(
        id="R1.step",
        name="step-ignores-micro-batches",
        component="train_step",
        statement="The raw gradient of an optimizer batch is the same however it is split into micro-batches.",
        catalogue=CATALOGUE,
        cost="CPU, seconds",
        laws=(
            Law(
                name="gradients add up",
                make=_make_for_model,
                measure=_step_split,
                suspects="averaging over micro-batches, gradients cleared in between, local token counts",
            ),
            Law(
                name="logged scalars add up",
                make=_make_for_model,
                measure=_metrics_split,
                suspects="a metric of the last micro-batch only, minima and maxima that are summed",
            ),
        ),
    ),
)
