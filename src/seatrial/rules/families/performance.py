"""Time and memory that drift; notices only: they say nothing on learning."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seatrial.rules.rule import Limits, Marks, Parameter, StepRule, Values
from seatrial.rules.windows import early_median, held


def _grows(name: str) -> Callable[[Values, Limits], Marks]:
    def mark(values: Values, limits: Limits) -> Marks:
        measured = values[name]
        level = early_median(measured, int(limits["early"]))
        factor = np.where(level > 0, measured / level, np.nan)
        grown = held(factor > limits["factor"], int(limits["held"]), int(limits["of_last"]))
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
        parameters={
            "early": Parameter(20, "hand-set"),
            "factor": Parameter(factor, "hand-set"),
            "held": Parameter(20, "hand-set"),
            "of_last": Parameter(25, "hand-set"),
        },
        meaning=meaning,
        remedy=remedy,
        min_points=25,
    )


RULES = (
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
