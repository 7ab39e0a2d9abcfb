"""R1, R3 and R12 of value losses: against plain loops, in parts, and with anything in the padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.values import ValueInputs, ValueSpec
from seatrial.relations.facts import bound_of, needs_masked_rows
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.loss.micro_batches import singles, unequal
from seatrial.relations.tensors import loss_difference

BOUND = 1e-9


@dataclass(frozen=True, kw_only=True)
class ValueRow:
    """Values, old values and returns of the trained tokens of a row; empty if the row must not train."""

    values: tuple[float, ...]
    old_values: tuple[float, ...]
    returns: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ValueCase(Case):
    """The rows of one optimizer batch."""

    rows: tuple[ValueRow, ...]
    seed: int

    def smaller(self) -> Iterator[ValueCase]:
        """Yield cases of fewer rows."""
        for drop in range(len(self.rows) if len(self.rows) > 1 else 0):
            yield replace(self, rows=self.rows[:drop] + self.rows[drop + 1 :])

    def describe(self) -> Mapping[str, Any]:
        """Return the rows as JSON values."""
        return {"seed": self.seed, "rows": [vars(row) for row in self.rows]}

    @property
    def num_tokens(self) -> int:
        """Training tokens of the batch."""
        return sum(len(row.values) for row in self.rows)


def _make(stack: Any, seed: int, tidy: bool, masked_row: bool = False) -> ValueCase:
    """Return rows of unequal lengths whose values moved by up to several clip ranges, in both directions."""
    rng = np.random.default_rng([seed, 12])
    lengths = [5] * 4 if tidy else [1, 9, 4, 6, *([0] if masked_row else [])]
    spread = 0.02 if tidy else 0.5

    def row(length: int) -> ValueRow:
        old, moved, noise = (rng.normal(size=length) for _ in range(3))
        values = old + spread * moved
        return ValueRow(
            values=tuple(map(float, values)),
            old_values=tuple(map(float, old)),
            returns=tuple(map(float, old + noise)),
        )

    return ValueCase(rows=tuple(row(length) for length in lengths), seed=seed)


DIVISOR = "a mean over the micro-batch where the global count is due, padded length as the divisor"

MICRO_BATCHES = Relation(
    id="R1.value",
    name="value-loss-ignores-micro-batches",
    component="value_loss",
    statement="Value losses of micro-batches add up to that of the whole batch, with unequal lengths.",
    catalogue="SB155 SB156 SB159",
    cost="CPU, milliseconds",
    cases=_make,
)

PADDING = Relation(
    id="R3.value",
    name="value-loss-ignores-padding",
    component="value_loss",
    statement="Neither the width nor the content of padding reaches the value loss.",
    catalogue="SB171",
    cost="CPU, milliseconds",
    cases=_make,
)

FORMULA = Relation(
    id="R12.value",
    name="value-loss-equals-oracle",
    component="value_loss",
    statement="Value and gradient of the value loss equal plain loops over the tokens.",
    catalogue="SB168",
    cost="CPU, milliseconds",
    cases=_make,
)


def losses_add_up(stack: Any, case: ValueCase, way: Callable[[int], list[list[int]]]) -> Measure | None:
    """Compare the sum of the micro-batches' losses with the loss of the whole batch."""
    split = way(len(case.rows))
    if len(split) < 2:
        return None
    whole, _ = _loss(stack, inputs_of(case, case.rows))
    parts = [_loss(stack, inputs_of(case, [case.rows[row] for row in part]))[0] for part in split]
    return Measure(
        error=abs(sum(parts) - whole) / max(abs(whole), 1e-3),
        bound=bound_of(stack, BOUND),
        what=f"loss, split into {[len(part) for part in split]} rows, relative difference",
    )


def _loss(stack: Any, inputs: ValueInputs) -> tuple[float, Tensor]:
    loss = stack.value_loss(inputs)
    (gradient,) = torch.autograd.grad(loss, inputs.values_BT, allow_unused=True)
    return float(loss.detach()), torch.zeros_like(inputs.values_BT) if gradient is None else gradient


def inputs_of(
    case: ValueCase, rows: Sequence[ValueRow], poison: float = 0.0, extra_columns: int = 0
) -> ValueInputs:
    """Return rows as tensors, padded on the right with `poison`; counts are those of the whole case."""
    T = max(1, *(len(row.values) for row in rows)) + extra_columns

    def padded(name: str, fill: float) -> Tensor:
        lists = [[*getattr(row, name), *[fill] * (T - len(row.values))] for row in rows]
        return torch.tensor(lists, dtype=torch.float64)

    mask = [[1.0] * len(row.values) + [0.0] * (T - len(row.values)) for row in rows]
    return ValueInputs(
        values_BT=padded("values", poison).requires_grad_(),
        old_values_BT=padded("old_values", poison),
        returns_BT=padded("returns", poison),
        mask_BT=torch.tensor(mask, dtype=torch.float64),
        global_valid_tokens=float(case.num_tokens),
        global_valid_seqs=float(sum(bool(row.values) for row in case.rows)),
    )


for which, way in (("of one row", singles), ("of unequal numbers of rows", unequal)):
    MICRO_BATCHES.law(f"losses add up, in micro-batches {which}", DIVISOR, way=way)(losses_add_up)


@PADDING.law("padded columns", "a mean over all positions", extra_columns=5)
@PADDING.law("content of masked positions", "a mask that multiplies: NaN times 0 is NaN", poison=float("nan"))
def padding_is_ignored(stack: Any, case: ValueCase, **change: Any) -> Measure:
    """Compare loss and gradient with changed padding with those of plain padding."""
    loss, gradient_BT = _loss(stack, inputs_of(case, case.rows))
    other, changed_BT = _loss(stack, inputs_of(case, case.rows, **change))
    T = gradient_BT.shape[1]
    return Measure(
        error=loss_difference(other, loss, changed_BT[:, :T], gradient_BT),
        bound=bound_of(stack, BOUND),
        what=f"loss or gradient with {change}, relative difference",
    )


@FORMULA.law(
    "loss and gradient",
    "the smaller of both errors, values clipped around the returns, a factor of 2",
)
@FORMULA.law(
    "loss and gradient, with a masked row",
    "0 / 0 of a row without tokens",
    cases=partial(_make, masked_row=True),
    excluded=needs_masked_rows,
)
def loss_and_gradient_equal_oracle(stack: Any, case: ValueCase) -> Measure:
    """Compare loss and gradient with plain loops over the tokens."""
    loss, gradient_BT = _loss(stack, inputs_of(case, case.rows))
    right, slopes = oracle(case, stack.value_spec)
    wanted_BT = torch.zeros_like(gradient_BT)
    for row, values in enumerate(slopes):
        wanted_BT[row, : len(values)] = torch.tensor(values, dtype=torch.float64)
    return Measure(
        error=loss_difference(loss, right, gradient_BT, wanted_BT),
        bound=bound_of(stack, BOUND),
        what=f"loss or gradient against the oracle for {stack.value_spec}, relative difference",
    )


def oracle(case: ValueCase, spec: ValueSpec) -> tuple[float, list[list[float]]]:
    """Return loss and derivative of each value, one token at a time; the error of a clipped value has no slope."""
    total, slopes = 0.0, []
    num_rows = sum(len(row.values) > 0 for row in case.rows)
    for row in case.rows:
        slopes.append([0.0] * len(row.values))
        count = case.num_tokens if spec.reduction == "token" else num_rows * len(row.values)
        for token, (value, old, target) in enumerate(
            zip(row.values, row.old_values, row.returns, strict=True)
        ):
            error = (value - target) ** 2
            slope = 2 * (value - target)
            if spec.clip is not None:
                clipped = min(max(value, old - spec.clip), old + spec.clip)
                if (clipped - target) ** 2 > error:
                    error, slope = (clipped - target) ** 2, 0.0
            total += spec.factor * error / count
            slopes[-1][token] = spec.factor * slope / count
    return total, slopes
