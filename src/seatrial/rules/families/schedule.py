"""The learning rate as a closed form of the step."""

from __future__ import annotations

import numpy as np

from seatrial.rules.rule import WILD, Limits, Marks, Parameter, StepRule, Values
from seatrial.rules.windows import is_rounded, repeated


def _huge(values: Values, limits: Limits) -> Marks:
    rate = values["learning_rate"]
    return Marks(rate, rate >= limits["rate"], rate >= limits["notice"])


def _zero(values: Values, limits: Limits) -> Marks:
    rate = values["learning_rate"]
    zero = repeated(rate == 0, limits)
    never = np.asarray(np.cumsum(rate != 0) == 0)
    # A console that prints three decimals shows every usual rate as zero.
    rounded = is_rounded(*(values[name] for name in ("loss", "grad_norm", "reward/mean")))
    return Marks(rate, zero & never & (not rounded), zero)


def _jumps(values: Values, limits: Limits) -> Marks:
    rate = values["learning_rate"]
    before = np.concatenate([rate[:1], rate[:-1]])
    # A warm-up may begin at zero and multiply the rate in its first steps; after a fall it is over.
    fell = np.asarray(np.cumsum(np.concatenate([[False], rate[1:] < rate[:-1]])) > 0)
    jumped = fell & (before > 0) & (rate > limits["factor"] * before)
    rose = fell & (before > 0) & (rate > limits["notice"] * before)
    return Marks(np.where(before > 0, rate / before, np.nan), jumped, rose)


RULES = (
    StepRule(
        id="learning-rate-huge",
        family="schedule",
        statement="the learning rate is beyond anything that trains a language model",
        needs=("learning_rate",),
        mark=_huge,
        bound="< {rate} (notice {notice})",
        parameters={
            "rate": Parameter(
                0.2, "no public recipe that we read is above 0.01; one stack prints it in units of 1e-4"
            ),
            "notice": Parameter(0.05, WILD),
        },
        meaning="an exponent that was lost in a configuration",
        remedy="stop; the weights are gone",
        min_points=1,
    ),
    StepRule(
        id="learning-rate-zero",
        family="schedule",
        statement="the learning rate has been zero from the first step on",
        needs=("learning_rate",),
        uses=("loss", "grad_norm", "reward/mean"),
        mark=_zero,
        bound="> 0 in one of the first {in_a_row} points",
        parameters={"in_a_row": Parameter(5, "a warm-up has one zero")},
        meaning="a scheduler that is never stepped, or whose number of steps is zero",
        remedy="print the schedule for the first steps; compare it with its closed form",
    ),
    StepRule(
        id="learning-rate-jumps",
        family="schedule",
        statement="the learning rate jumped up after it had begun to fall",
        needs=("learning_rate",),
        mark=_jumps,
        bound="<= {factor} times the one before (notice {notice})",
        parameters={
            "factor": Parameter(10, "hand-set: warm restarts of public recipes are smaller or on purpose"),
            "notice": Parameter(1.5, WILD),
        },
        meaning="a schedule that starts again: a resume that lost the scheduler, or a restart on purpose",
        remedy="compare the step that the scheduler counts with that of the log after the resume",
    ),
)
