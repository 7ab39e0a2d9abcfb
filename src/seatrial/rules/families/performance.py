"""Time and memory: a drift is a notice, for it says nothing on learning; seconds that add up are broken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seatrial.rules.rule import HAND_SET, Limits, Marks, Parameter, StepRule, Values, figures
from seatrial.rules.windows import early_median, lasting, repeated


def _grows(name: str) -> Callable[[Values, Limits], Marks]:
    def mark(values: Values, limits: Limits) -> Marks:
        measured = values[name]
        level = early_median(measured, int(limits["early"]))
        factor = np.where(level > 0, measured / level, np.nan)
        grown = lasting(factor > limits["factor"], limits)
        return Marks(factor, np.zeros(len(measured), dtype=np.bool_), grown)

    return mark


def _rule(name: str, short: str, factor: float, statement: str, meaning: str, remedy: str) -> StepRule:
    return StepRule(
        id=short,
        family="performance",
        statement=statement,
        needs=(name,),
        mark=_grows(name),
        bound="<= {factor} times the median of the first {early} points",
        parameters=figures(HAND_SET, early=20, factor=factor, held=20, of_last=25),
        meaning=meaning,
        remedy=remedy,
        min_points=25,
    )


def _adds_up(values: Values, limits: Limits) -> Marks:
    seconds = values["time/step"]
    risen = np.concatenate([[False], seconds[1:] > seconds[:-1]])
    return Marks(seconds, repeated(risen, limits))


RULES = (
    StepRule(
        id="step-time-adds-up",
        family="performance",
        statement="every step takes longer than the one before it, without exception",
        needs=("time/step",),
        mark=_adds_up,
        bound="a shorter step among {in_a_row}",
        parameters={"in_a_row": Parameter(20, "hand-set: a machine is not so even that chance does this")},
        meaning="a timer that is never reset, so that a step has the seconds of all before it",
        remedy="compare the sum of the steps with the clock",
        min_points=20,
    ),
    _rule(
        "time/step",
        "step-time-grows",
        3,
        "steps take several times as long as they did",
        "longer completions, a leak, or a neighbour on the machine",
        "compare the shares of generation, training and weight sync",
    ),
    _rule(
        "memory/peak",
        "memory-grows",
        1.5,
        "peak memory grows",
        "tensors that are kept from step to step, or longer rows",
        "take a snapshot of memory at two steps",
    ),
)
