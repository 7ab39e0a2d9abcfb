"""R1: how a batch is split into micro-batches changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from seatrial.relations.cases import Rollout, rollout_for, rollout_of_model
from seatrial.relations.facts import bound_of, needs_unequal_micro_batches
from seatrial.relations.law import Excluded, F, Measure, Relation, nothing_excluded
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
GRADIENT_BOUND = 2e-5  # float32 sums in another order
METRIC_BOUND = 1e-4


Split = list[list[int]]


def singles(num_rows: int) -> Split:
    """Return micro-batches of one row."""
    return [[row] for row in range(num_rows)]


def pairs(num_rows: int) -> Split:
    """Return micro-batches of two rows; the last has one where the number is odd."""
    rows = list(range(num_rows))
    return [rows[start : start + 2] for start in range(0, num_rows, 2)]


def unequal(num_rows: int) -> Split:
    """Return a third of the rows, and the rest."""
    rows, third = list(range(num_rows)), max(1, num_rows // 3)
    return [part for part in (rows[:third], rows[third:]) if part]


def halves(num_rows: int) -> Split:
    """Return two halves: how tidy rows are split."""
    rows = list(range(num_rows))
    return [part for part in (rows[: num_rows // 2], rows[num_rows // 2 :]) if part]


def splits(num_rows: int, *, tidy: bool = False) -> list[Split]:
    """Return the ways to split rows into micro-batches; halves when tidy."""
    ways = (halves,) if tidy else (singles, pairs, unequal)
    return [way(num_rows) for way in ways]


CATALOGUE = (
    "SB097 SB111 SB155 SB156 SB157 SB158 SB159 SB164 SB175 SB181 SB182 SB185 SB195 SB199 SB201 SB202 SB206 SB207 SB210 "
    "SB215 SB334 SB371 SB375 SB377"
)


LOSS = Relation(
    id="R1.loss",
    name="loss-ignores-micro-batches",
    component="policy_loss",
    statement="Losses and gradients of micro-batches add up to those of the whole batch, with unequal lengths.",
    catalogue=CATALOGUE,
    cost="CPU, milliseconds",
    cases=rollout_for,
)
STEP = Relation(
    id="R1.step",
    name="step-ignores-micro-batches",
    component="train_step",
    statement="The raw gradient of an optimizer batch is the same however it is split into micro-batches.",
    catalogue=CATALOGUE,
    cost="CPU, seconds",
    cases=rollout_of_model,
)
WAYS: tuple[tuple[str, Callable[[int], Split], Excluded], ...] = (
    ("of one row", singles, nothing_excluded),
    ("of two rows", pairs, nothing_excluded),
    ("of unequal numbers of rows", unequal, needs_unequal_micro_batches),
)


def _law_for_each_way(relation: Relation, name: str, suspects: str) -> Callable[[F], F]:
    """Return a decorator that makes a law of each way to split a batch; the function gets `way`."""
    laws = [
        relation.law(f"{name}, in micro-batches {which}", suspects, excluded=excluded, way=way)
        for which, way, excluded in WAYS
    ]

    def register(measure: F) -> F:
        for law in laws:
            law(measure)
        return measure

    return register


def _split(case: Rollout, way: Callable[[int], Split]) -> tuple[Rollout, Split]:
    """Return the case, with an even number of rows where pairs are to be equal, and its split."""
    if way is pairs and len(case.rows) > 2:
        case = replace(case, rows=case.rows[: len(case.rows) // 2 * 2])
    return case, (halves if case.tidy else way)(len(case.rows))


@_law_for_each_way(
    LOSS,
    "losses add up",
    "a mean over the micro-batch where the global count is due, padded length as the divisor",
)
def losses_add_up(stack: Any, whole: Rollout, way: Callable[[int], Split]) -> Measure:
    """Compare the sum of losses and gradients of the micro-batches with those of the whole batch."""
    case, split = _split(whole, way)
    whole_loss, whole_BT = _loss_of(stack, case, case.rows)
    parts = [_loss_of(stack, case, [case.rows[row] for row in part]) for part in split]
    total = sum(loss for loss, _ in parts)
    # Parts of opposite signs may nearly cancel; what a denominator's epsilon moves is in proportion to each of them.
    scale = max(abs(whole_loss), sum(abs(loss) for loss, _ in parts), 1e-3)
    gradient_BT = _pad_rows([row for _, part_BT in parts for row in part_BT], whole_BT.shape[1])
    error = loss_difference(total, whole_loss, gradient_BT, whole_BT, scale=scale)
    sizes = [len(part) for part in split]
    return Measure(
        error=error,
        bound=bound_of(stack, LOSS_BOUND),
        what=f"loss or gradient, split into {sizes} rows, relative difference",
    )


def _loss_of(stack: Any, case: Rollout, rows: Sequence[Row]) -> tuple[float, torch.Tensor]:
    inputs = inputs_of(case, rows, counts=counts_of(case.rows))
    loss = stack.policy_loss(inputs)
    return float(loss.detach()), gradient_of(loss, inputs)


def _pad_rows(rows: Sequence[torch.Tensor], T: int) -> torch.Tensor:
    return torch.stack([torch.nn.functional.pad(row, (0, T - len(row))) for row in rows])


@_law_for_each_way(
    STEP,
    "gradients add up",
    "averaging over micro-batches, gradients cleared in between, local token counts",
)
def gradients_add_up(stack: Any, whole: Rollout, way: Callable[[int], Split]) -> Measure:
    """Compare the gradient of the split step with that of the whole one."""
    case, split = _split(whole, way)
    together = stack.gradients(case.rows, [list(range(len(case.rows)))])
    error, name = largest_gradient_difference(stack.gradients(case.rows, split).gradients, together.gradients)
    return Measure(
        error=error,
        bound=GRADIENT_BOUND,
        what=f"gradient of {name}, split into {[len(part) for part in split]} rows, relative difference",
    )


@_law_for_each_way(
    STEP,
    "logged scalars add up",
    "a metric of the last micro-batch only, minima and maxima that are summed",
)
def logged_scalars_add_up(stack: Any, whole: Rollout, way: Callable[[int], Split]) -> Measure | None:
    """Compare the logged scalars of the split step with those of the whole one."""
    case, split = _split(whole, way)
    together = stack.gradients(case.rows, [list(range(len(case.rows)))]).metrics
    if not together:
        return None
    worst = Worst(place="no metric")
    given = stack.gradients(case.rows, split).metrics
    for name in sorted(together.keys() | given.keys()):
        right = together.get(name, float("nan"))
        worst.add(abs(given.get(name, float("nan")) - right) / max(1.0, abs(right)), name)
    return Measure(
        error=worst.error,
        bound=METRIC_BOUND,
        what=f"logged {worst.place}, split into {[len(part) for part in split]} rows, relative difference",
    )
