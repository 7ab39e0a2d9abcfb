"""The loss: one that leaves every scale, and a supervised or preference loss that is zero, rises or does not fall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seatrial.rules.families.values import is_supervised
from seatrial.rules.rule import (
    HAND_SET,
    Finding,
    Limits,
    Marks,
    Parameter,
    StepRule,
    Streams,
    Values,
    not_triggered,
)
from seatrial.rules.windows import (
    beyond_scale,
    early_median,
    fallen,
    lasting,
    looks,
    most_gained,
    repeated,
    trend,
)


@dataclass(frozen=True, kw_only=True)
class SupervisedRule(StepRule):
    """A rule on the loss of a log that says nothing of rewards, advantages or a policy."""

    family: str = "loss"
    needs: Sequence[str] = ("loss",)

    def judge(self, streams: Streams) -> Finding:
        """Look at the loss, unless it may be one of reinforcement learning."""
        if streams.one("loss") is not None and not is_supervised(streams):
            return not_triggered("the loss is not that of supervised training or of preferences")
        return super().judge(streams)


def _exploding(values: Values, limits: Limits) -> Marks:
    loss = np.abs(values["loss"])
    level = early_median(loss, int(limits["early"]))
    beyond = (loss > limits["loss"]) & (loss > limits["factor"] * level)
    return Marks(loss, lasting(beyond, limits) | beyond_scale(loss, limits["times"], limits["least"]))


def _zero(values: Values, limits: Limits) -> Marks:
    return Marks(values["loss"], repeated(values["loss"] == 0, limits))


def _rises(values: Values, limits: Limits) -> Marks:
    loss = values["loss"]
    risen, far = np.zeros(len(loss), dtype=np.bool_), np.zeros(len(loss), dtype=np.bool_)
    for number in looks(len(loss), int(limits["points"])):
        fifth = number // 5
        if number < limits["many"]:
            continue
        risen[number - 1] = trend(loss[:number]) > limits["z"]
        far[number - 1] = np.median(loss[number - fifth : number]) > limits["factor"] * np.median(
            loss[:fifth]
        )
    _, leaps = fallen(-loss, limits)
    return Marks(loss, (risen & far) | leaps, risen)


def _flat(values: Values, limits: Limits) -> Marks:
    loss = values["loss"]
    flat = np.zeros(len(loss), dtype=np.bool_)
    for number in looks(len(loss), int(limits["points"])):
        no_trend = abs(trend(loss[:number])) < limits["z"]
        flat[number - 1] = no_trend and most_gained(-loss[:number]) < limits["gain"]
    return Marks(loss, np.zeros(len(loss), dtype=np.bool_), flat)


RULES = (
    StepRule(
        id="loss-exploding",
        family="loss",
        statement="the loss has left every scale and stays there",
        needs=("loss",),
        mark=_exploding,
        bound="|loss| <= {loss}, or {factor} times the median of the first {early} points; most of the last tenth "
        "<= {times} times what came before, or <= {least}",
        parameters={
            "times": Parameter(30, "healthy runs of the corpus reach 2 where the loss is above 1"),
            "least": Parameter(3, HAND_SET),
            "loss": Parameter(1e4, "hand-set: losses that are summed over tokens reach hundreds"),
            "factor": Parameter(1000, HAND_SET),
            "early": Parameter(10, HAND_SET),
            "held": Parameter(3, HAND_SET),
            "of_last": Parameter(5, HAND_SET),
        },
        meaning="a learning rate that is too large, ratios that are not clipped, or a term of the loss without a bound",
        remedy="look at the first step at which loss, ratio or KL left its range, and resume before it",
        min_points=8,
    ),
    SupervisedRule(
        id="loss-zero",
        statement="the loss of supervised training is exactly zero, step after step",
        mark=_zero,
        bound="> 0 in one of {in_a_row} steps",
        parameters={
            "in_a_row": Parameter(5, "hand-set: a loss that is printed with four decimals may be 0 once")
        },
        meaning="a mask of zeros, rows cut to nothing, or an overflow that a trainer turns into 0",
        remedy="print the sum of the loss mask of a row, and the loss of one batch in float32",
        catalogue=("SB007",),
    ),
    SupervisedRule(
        id="loss-rises",
        statement="the loss of supervised training or of preferences rises over the run",
        mark=_rises,
        bound="z of a Mann-Kendall test <= {z}; alarm: the last fifth {factor} times the first fifth, or the last "
        "tenth {widths} noise widths, {part} of all levels and {share} of itself above the lowest level",
        parameters={
            "z": Parameter(2.57, "a loss without a trend rises so in 0.5 % of runs"),
            "factor": Parameter(1.5, HAND_SET),
            "points": Parameter(8, "least number of points"),
            "many": Parameter(20, "least number of points for the test of a trend"),
            "widths": Parameter(6.5, "rises of healthy runs of the corpus, thinned or whole, reach 2"),
            "part": Parameter(0.5, HAND_SET),
            "share": Parameter(0.2, HAND_SET),
        },
        meaning="a learning rate that is too large, a loss of the wrong sign, or data that get harder",
        remedy="compute the loss of the first batch again with the last weights",
        min_points=8,
    ),
    SupervisedRule(
        id="loss-does-not-fall",
        statement="the loss of supervised training or of preferences has no trend over the run",
        mark=_flat,
        bound="|z| >= {z} in a Mann-Kendall test, or a fall that may exceed {gain} spreads",
        parameters={
            "z": Parameter(1.96, "a series without a trend exceeds it in 5 % of runs"),
            "gain": Parameter(
                0.5, "hand-set: spreads of the points that the last third may be below the first"
            ),
            "points": Parameter(20, "least number of points"),
        },
        meaning="a learning rate that is too small, frozen parameters, or a model that knows the data already",
        remedy="compare a weight before and after a step; overfit one batch",
        min_points=20,
    ),
)
