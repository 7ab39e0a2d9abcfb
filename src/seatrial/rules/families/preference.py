"""Preference optimisation: DPO and related methods."""

from __future__ import annotations

import numpy as np

from seatrial.rules.rule import WILD, Limits, Marks, Parameter, StepRule, Values
from seatrial.rules.windows import changes, repeated, trailing_mean


def _saturated(values: Values, limits: Limits) -> Marks:
    loss, margin = values["loss"], values["preference/margin"]
    gone = (np.abs(loss) < limits["loss"]) & (margin > limits["margin"])
    return Marks(margin, gone, (np.abs(loss) < 100 * limits["loss"]) & (margin > limits["margin"] / 2))


def _inverted(values: Values, limits: Limits) -> Marks:
    mean = trailing_mean(values["preference/accuracy"], int(limits["window"]))
    return Marks(mean, mean < limits["accuracy"], mean < limits["notice"])


def _constant(values: Values, limits: Limits) -> Marks:
    logprobs = values["preference/chosen_logprobs"]
    return Marks(logprobs, repeated(~changes(logprobs), limits))


RULES = (
    StepRule(
        id="preference-saturated",
        family="preference",
        statement="the loss is exactly zero and the margins run away",
        needs=("loss", "preference/margin"),
        mark=_saturated,
        bound="|loss| >= {loss}, or a margin <= {margin}",
        parameters={
            "loss": Parameter(1e-6, WILD),
            "margin": Parameter(20, "hand-set: log(1 + exp(-20)) is 2e-9, below what float32 adds to 1"),
        },
        meaning="pairs that differ in something else than quality (length, a template), or a beta or learning "
        "rate that is too large",
        remedy="read a chosen and a rejected answer as they are trained on; lower the learning rate",
        min_points=1,
    ),
    StepRule(
        id="preference-inverted",
        family="preference",
        statement="the rejected answers are preferred",
        needs=("preference/accuracy",),
        mark=_inverted,
        bound="mean of {window} points >= {accuracy} (notice {notice})",
        parameters={
            "window": Parameter(20, WILD),
            "accuracy": Parameter(0.35, "hand-set: half is chance"),
            "notice": Parameter(0.45, WILD),
        },
        meaning="chosen and rejected swapped, or a loss of the wrong sign",
        remedy="look at one pair as it is collated",
        catalogue=("SB017", "SB027"),
        min_points=20,
    ),
    StepRule(
        id="preference-logprobs-constant",
        family="preference",
        statement="the log-probability of the chosen answers repeats to the last digit",
        needs=("preference/chosen_logprobs",),
        mark=_constant,
        bound="another value in one of {in_a_row} steps",
        parameters={"in_a_row": Parameter(5, "hand-set: floating point repeats by accident hardly twice")},
        meaning="a mask of zeros, rows cut to nothing, or one batch that is trained forever",
        remedy="print the sum of the loss mask of a row",
        catalogue=("SB007",),
    ),
)
