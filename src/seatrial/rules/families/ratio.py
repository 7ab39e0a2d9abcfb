"""Importance ratios and clipping."""

from __future__ import annotations

import numpy as np

from seatrial.rules.rule import HAND_SET, Limits, Marks, Parameter, StepRule, Values, figures
from seatrial.rules.windows import lasting, repeated


def _off(values: Values, limits: Limits) -> Marks:
    ratio = values["ratio/mean"]
    alarm = (ratio > limits["factor"]) | (ratio < 1 / limits["factor"])
    notice = (ratio > limits["notice"]) | (ratio < 1 / limits["notice"])
    return Marks(ratio, lasting(alarm, limits), lasting(notice, limits))


def _saturated(values: Values, limits: Limits) -> Marks:
    share = values["clip_fraction"]
    return Marks(share, lasting(share > limits["share"], limits), lasting(share > limits["notice"], limits))


def _never(values: Values, limits: Limits) -> Marks:
    share = values["clip_fraction"]
    largest = np.fmax(values["ratio/max"], np.where(values["ratio/min"] > 0, 1 / values["ratio/min"], np.nan))
    unclipped = repeated((share == 0) & (largest > limits["ratio"]), limits)
    return Marks(largest, unclipped)


RULES = (
    StepRule(
        id="ratio-off",
        family="ratio",
        statement="the mean ratio of current to old probability is far from 1",
        needs=("ratio/mean",),
        mark=_off,
        bound="within a factor of {factor} of 1 (notice {notice}), except for spikes",
        parameters={
            "factor": Parameter(1.5, "hand-set: in expectation over the old policy the ratio is 1"),
            **figures(HAND_SET, notice=1.1, held=3, of_last=5),
        },
        meaning="old log-probabilities of another temperature, mask, precision or policy version",
        remedy="in the first mini-batch of an on-policy step the ratio is 1: compare both log-probabilities there",
        catalogue=("SB038", "SB039"),
    ),
    StepRule(
        id="clip-saturated",
        family="ratio",
        statement="most tokens are clipped, step after step",
        needs=("clip_fraction",),
        mark=_saturated,
        bound="<= {share} (notice {notice}), except for spikes",
        parameters=figures(HAND_SET, share=0.5, notice=0.3, held=10, of_last=12),
        meaning="old log-probabilities that are not those of the sampling policy, or far too many updates a step",
        remedy="look at the ratio in the first mini-batch",
        min_points=10,
    ),
    StepRule(
        id="clip-never",
        family="ratio",
        statement="nothing is clipped although ratios are far outside the clip",
        needs=("clip_fraction", "ratio/max"),
        uses=("ratio/min",),
        mark=_never,
        bound="> 0 in one of {in_a_row} steps with a ratio beyond {ratio}",
        parameters={
            "in_a_row": Parameter(10, HAND_SET),
            "ratio": Parameter(2, "hand-set: beyond every usual clip"),
        },
        meaning="a clip that is off, or a clip fraction that is computed of other ratios",
        remedy="`seatrial relations` on the loss",
        min_points=10,
    ),
)
