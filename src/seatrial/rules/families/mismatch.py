"""Sampler against trainer: two implementations of one policy that should agree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seatrial.rules.rule import HAND_SET, Limits, Marks, Parameter, StepRule, Values, figures
from seatrial.rules.windows import early_median, early_minimum, lasting

StepRuleMark = Callable[[Values, Limits], Marks]
_MEANING = (
    "weights that did not arrive or are old, another temperature, template, truncation or precision, or sampling "
    "that keeps a part of the distribution"
)
_REMEDY = (
    "score the rows of one step at position 0, at short and long prompts, and right after a sync: the position of "
    "the gap shows the cause"
)
_CATALOGUE = ("SB011", "SB021", "SB022", "SB038", "SB039", "SB041", "SB043", "SB046")


def _above(name: str) -> StepRuleMark:
    def mark(values: Values, limits: Limits) -> Marks:
        gap = np.abs(values[name] - limits["neutral"])
        return Marks(
            values[name],
            lasting(gap > limits["gap"], limits),
            lasting(gap > limits["notice"], limits),
        )

    return mark


def _grows(name: str) -> StepRuleMark:
    def mark(values: Values, limits: Limits) -> Marks:
        gap = np.abs(values[name] - limits["neutral"])
        level = np.maximum(early_median(gap, int(limits["early"])), limits["floor"])
        grown = lasting(gap > limits["factor"] * level, limits)
        return Marks(gap / level, grown & (gap > limits["notice"]), grown)

    return mark


def _parts(name: str) -> StepRuleMark:
    def mark(values: Values, limits: Limits) -> Marks:
        gap = np.abs(values[name] - limits["neutral"])
        level = early_minimum(gap, int(limits["early"]))
        # Samples of older weights differ, and are meant to.
        fresh = ~(values["staleness/mean"] > 0)
        apart = (level < limits["rounding"]) & (gap > limits["gap"]) & fresh
        return Marks(values[name], lasting(apart, limits))

    return mark


def _rules(
    name: str, short: str, neutral: float, notice: float, alarm: float, source: str, rounding: float
) -> list[StepRule]:
    shared = {
        "neutral": Parameter(neutral, "by construction"),
        "notice": Parameter(notice, source),
        **figures(HAND_SET, held=5, of_last=6),
    }
    return [
        StepRule(
            id=f"mismatch-{short}",
            family="mismatch",
            statement="sampler and trainer give the same tokens other probabilities",
            needs=(name,),
            mark=_above(name),
            bound="within {gap} of {neutral} (notice {notice}), except for spikes",
            parameters={**shared, "gap": Parameter(alarm, source)},
            meaning=_MEANING,
            remedy=_REMEDY,
            catalogue=_CATALOGUE,
        ),
        StepRule(
            id=f"mismatch-{short}-grows",
            family="mismatch",
            statement="the gap between sampler and trainer grows during the run",
            needs=(name,),
            mark=_grows(name),
            bound="<= {factor} times the median of the first {early} points, and within {notice}",
            parameters={
                **shared,
                **figures(HAND_SET, early=10, factor=10),
                "floor": Parameter(notice / 20, "hand-set: what float arithmetic leaves"),
            },
            meaning="a sampler that no longer receives the trainer's weights, or receives a part of them",
            remedy="compare a checksum of each weight on both sides after a sync",
            catalogue=_CATALOGUE,
            min_points=10,
        ),
        StepRule(
            id=f"mismatch-{short}-parts",
            family="mismatch",
            statement="sampler and trainer agreed to the last digits at the start, and no longer do",
            needs=(name,),
            uses=("staleness/mean",),
            mark=_parts(name),
            bound="within {gap} of {neutral}, where one of the first {early} points is within {rounding}",
            parameters={
                **shared,
                "early": Parameter(3, HAND_SET),
                "rounding": Parameter(
                    rounding, "hand-set: what float32 leaves of one computation done twice"
                ),
                "gap": Parameter(100 * rounding, HAND_SET),
            },
            meaning="weights that reach the sampler late, in part or in lower precision from the first update on",
            remedy="compare a checksum of each weight on both sides after a sync",
            catalogue=_CATALOGUE,
        ),
    ]


RULES = (
    *_rules(
        "mismatch/mult_prob_error",
        "mult-prob-error",
        1.0,
        0.05,
        0.2,
        "NeMo RL's nightly tests bound its maximum by 1.05 in most suites",
        1e-5,
    ),
    *_rules("mismatch/kl", "kl", 0.0, 0.02, 0.1, HAND_SET, 1e-9),
    *_rules("mismatch/logprob_abs_diff", "logprobs", 0.0, 0.1, 0.3, HAND_SET, 1e-5),
    *_rules("mismatch/prob_abs_diff", "probs", 0.0, 0.02, 0.05, HAND_SET, 1e-6),
    *_rules("mismatch/importance_ratio", "importance-ratio", 1.0, 0.1, 0.5, HAND_SET, 1e-5),
)
