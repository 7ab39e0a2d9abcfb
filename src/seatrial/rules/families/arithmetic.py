"""Identities between the figures of one step in any run: sums, bounds, and the loss as the sum of its terms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seatrial.rules.rule import HAND_SET, Limits, Marks, Parameter, StepRule, Values
from seatrial.rules.windows import Flags, Floats, repeated

_ROUNDING = "hand-set: float32 keeps seven digits"


def _running(values: Floats | Flags) -> Floats:
    return np.asarray(np.cumsum(values, dtype=np.float64))


def _surrogate(values: Values, limits: Limits) -> Marks:
    """Fit loss = c * (-mean advantage) + b * KL to all points so far; c is 1 where the fit is exact."""
    advantage, kl = -values["advantages/mean"], np.nan_to_num(values["kl/reference"])
    on_policy = (values["ratio/max"] - 1 < limits["ratio"]) & (1 - values["ratio/min"] < limits["ratio"])
    loss = np.where(on_policy, values["loss"], 0.0)
    advantage, kl = np.where(on_policy, advantage, 0.0), np.where(on_policy, kl, 0.0)
    aa, kk, ll = _running(advantage**2), _running(kl**2), _running(loss**2)
    ak, al, kl_l = _running(advantage * kl), _running(advantage * loss), _running(kl * loss)
    determinant = aa * kk - ak**2
    alone = determinant <= 1e-9 * aa * kk
    c = np.where(alone, al / aa, (al * kk - kl_l * ak) / determinant)
    b = np.where(alone, 0.0, (kl_l * aa - al * ak) / determinant)
    left = np.sqrt(np.maximum(ll - c * al - b * kl_l, 0))
    exact = (left < limits["residual"] * np.sqrt(ll)) & (_running(on_policy) >= limits["points"])
    weighs = np.abs(c) * np.sqrt(aa) > limits["weight"] * left
    wrong = exact & weighs & (np.abs(c - 1) > limits["off"])
    return Marks(c, repeated(wrong, limits))


def _one_sided(values: Values, limits: Limits) -> Marks:
    low, high = values["advantages/min"], values["advantages/max"]
    one_sided = (low > 0) | (high < 0)
    never = np.zeros(len(low), dtype=np.bool_)
    return Marks(np.where(low > 0, low, high), never, repeated(one_sided, limits))


def _rows(values: Values, limits: Limits) -> Marks:
    share = values["rows/counted"] / values["rows/batch"]
    uneven = np.abs(share - np.round(share)) > limits["rounding"]
    return Marks(share, repeated(uneven | (share < 0.5), limits))


def _differ(one: Floats, other: Floats, limits: Limits) -> Flags:
    return np.asarray(np.abs(one - other) > limits["rounding"] * np.maximum(1.0, np.abs(other)))


def _lengths(values: Values, limits: Limits) -> Marks:
    total = values["length/prompt_mean"] + values["length/completion_mean"]
    gap = total - values["length/total_mean"]
    wrong = _differ(total, values["length/total_mean"], limits)
    return Marks(gap, repeated(wrong, limits))


def _endings(values: Values, limits: Limits) -> Marks:
    total = values["truncation_fraction"] + values["termination_fraction"]
    wrong = _differ(total, np.ones_like(total), limits)
    return Marks(total, repeated(wrong, limits))


def _ordered(low: str, middle: str, high: str) -> Callable[[Values, Limits], Marks]:
    def mark(values: Values, limits: Limits) -> Marks:
        slack = limits["rounding"] * np.maximum(1.0, np.abs(values[middle]))
        wrong = (values[middle] > values[high] + slack) | (values[middle] < values[low] - slack)
        return Marks(values[middle], repeated(wrong, limits))

    return mark


_TWO = {"in_a_row": Parameter(2, HAND_SET), "rounding": Parameter(1e-4, _ROUNDING)}


def _order(name: str, low: str, middle: str, high: str) -> StepRule:
    return StepRule(
        id=f"{name}-out-of-order",
        family="arithmetic",
        statement="a mean is outside of its own minimum and maximum",
        needs=tuple(dict.fromkeys((low, middle, high))),
        mark=_ordered(low, middle, high),
        bound="minimum <= mean <= maximum",
        parameters=_TWO,
        meaning="means that are taken over other tokens than the extremes, such as padding or one micro-batch",
        remedy="recompute the three from one step's rows",
        min_points=2,
    )


RULES = (
    StepRule(
        id="loss-not-its-terms",
        family="arithmetic",
        statement="the loss is a multiple of minus the mean advantage other than 1, exactly",
        needs=("loss", "advantages/mean", "ratio/min", "ratio/max"),
        uses=("kl/reference",),
        mark=_surrogate,
        bound="while every ratio is 1, loss = -c mean advantage + b KL: c within {off} of 1 where a fit is exact",
        parameters={
            "ratio": Parameter(
                1e-3, "every ratio is 1 where rows are trained on once, by the weights that drew them"
            ),
            "residual": Parameter(
                1e-3, "hand-set: of the size of the loss; another reduction does not fit at all"
            ),
            "weight": Parameter(20, "hand-set: the advantages' part of the loss against what is left over"),
            "off": Parameter(0.05, HAND_SET),
            "points": Parameter(8, "hand-set: four times the two coefficients"),
            "in_a_row": Parameter(3, HAND_SET),
        },
        meaning="advantages of the wrong sign, or a loss that is divided once more, by micro-batches or ranks",
        remedy="`seatrial relations` on the loss: gradients against a micro-batch of everything",
        catalogue=("SB147",),
        min_points=8,
    ),
    StepRule(
        id="advantages-one-sided",
        family="arithmetic",
        statement="all advantages of a step have one sign",
        needs=("advantages/min", "advantages/max"),
        mark=_one_sided,
        bound="minimum <= 0 <= maximum in one of {in_a_row} steps",
        parameters={
            "in_a_row": Parameter(
                5,
                "hand-set; four healthy wild logs have one sign: their baseline is a running mean",
            )
        },
        meaning="a baseline that is not subtracted, or that of another batch",
        remedy="`seatrial ledger` recomputes advantages from the rewards of each group",
    ),
    StepRule(
        id="rows-lost-in-the-loss",
        family="arithmetic",
        statement="the rows that the loss counts over its micro-batches are not those of the batch",
        needs=("rows/counted", "rows/batch"),
        mark=_rows,
        bound="a whole multiple (one for each update)",
        parameters={
            "rounding": Parameter(1e-4, _ROUNDING),
            "in_a_row": Parameter(3, HAND_SET),
        },
        meaning="rows that are dropped or taken twice where a batch is cut into micro-batches",
        remedy="print the rows of each micro-batch; `seatrial relations` splits a batch in several ways",
        min_points=3,
    ),
    StepRule(
        id="lengths-do-not-add-up",
        family="arithmetic",
        statement="prompt and completion are together not the total length",
        needs=("length/prompt_mean", "length/completion_mean", "length/total_mean"),
        mark=_lengths,
        bound="prompt + completion = total",
        parameters=_TWO,
        meaning="lengths that count padding, or prompts of other rows",
        remedy="count the ids of one step's rows",
        min_points=2,
    ),
    StepRule(
        id="endings-do-not-add-up",
        family="arithmetic",
        statement="completions that were cut off and those that ended are together not all",
        needs=("truncation_fraction", "termination_fraction"),
        mark=_endings,
        bound="the two shares add up to 1",
        parameters=_TWO,
        meaning="completions that are counted as neither or as both, such as those that were aborted",
        remedy="count the finish reasons of one step's rows",
        min_points=2,
    ),
    _order("ratio", "ratio/min", "ratio/mean", "ratio/max"),
    _order("reward", "reward/min", "reward/mean", "reward/max"),
    _order("length", "length/completion_min", "length/completion_mean", "length/completion_max"),
)
