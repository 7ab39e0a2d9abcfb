"""Entropy that explodes, collapses, or is not computed."""

from __future__ import annotations

import numpy as np

from seatrial.rules.rule import HAND_SET, WILD, Limits, Marks, Parameter, StepRule, Values, figures
from seatrial.rules.windows import (
    Flags,
    Floats,
    changes,
    close_looks,
    early_median,
    early_minimum,
    held,
    lasting,
    near_its_best,
    repeated,
)


def _explosion(values: Values, limits: Limits) -> Marks:
    entropy = values["entropy"]
    level = early_minimum(entropy, int(limits["early"]))
    high = (entropy > level + limits["nats"]) & (entropy > limits["factor"] * level)
    rising = (entropy > level + limits["nats"] / 2) & (entropy > limits["factor"] * level)
    return Marks(
        entropy - level,
        lasting(high, limits),
        lasting(rising, limits),
    )


def _collapse(values: Values, limits: Limits) -> Marks:
    entropy = values["entropy"]
    level = early_median(entropy, int(limits["early"]))
    of_last = int(limits["of_last"])
    low = lasting((entropy < limits["share"] * level) & (entropy < limits["nats"]), limits)
    reward = values["reward/mean"]
    unsolved = np.isfinite(reward) & ~near_its_best(reward, of_last)
    with_spread = unsolved & (values["reward/std"] > 0)
    gone = _gone(entropy, limits)
    alarm = (low & held(with_spread, int(limits["held"]) // 2, of_last)) | (gone & unsolved)
    return Marks(entropy, alarm, low | gone)


def _gone(entropy: Floats, limits: Limits) -> Flags:
    """Say where the entropy was low in most of the last quarter of the points, at least `least`."""
    found, first = np.zeros(len(entropy), dtype=np.bool_), int(limits["least"])
    level = early_median(entropy, first)
    low = (entropy < limits["share"] * level) & (entropy < limits["nats"])
    for number in close_looks(len(entropy), 2 * first):
        found[number - 1] = low[number - max(first, -(-number // 4)) : number].mean() >= limits["most"]
    return found


def _constant(values: Values, limits: Limits) -> Marks:
    entropy = values["entropy"]
    same = repeated(~changes(entropy), limits)
    return Marks(entropy, same & (entropy != 0), same)


RULES = (
    StepRule(
        id="entropy-explosion",
        family="entropy",
        statement="the entropy of the policy rises towards that of random tokens",
        needs=("entropy",),
        mark=_explosion,
        bound="<= {nats} nats above, or {factor} times, the lowest of the first {early} points",
        parameters=figures(WILD, early=5, nats=2, factor=3, held=3, of_last=4),
        meaning="updates of the wrong sign or size: a learning rate that is too large, an entropy bonus that wins, "
        "advantages that fit other rows",
        remedy="stop; go back to the last checkpoint before this step and lower the learning rate; then "
        "`seatrial relations` on loss and advantages",
        min_points=4,
    ),
    StepRule(
        id="entropy-collapse",
        family="entropy",
        statement="the policy has become deterministic and the task is not solved",
        needs=("entropy",),
        uses=("reward/mean", "reward/std"),
        mark=_collapse,
        bound=">= {share} of the median of the first {early} points or {nats} nats in {held} of {of_last} points, or "
        "{most} of the last quarter ({least} points or more), unless the reward is at its best",
        parameters={
            "early": Parameter(10, WILD),
            "share": Parameter(
                0.05, "a good PPO run in the wild logs falls to an eighth, a solved task to 1e-4"
            ),
            **figures(WILD, nats=0.02, held=20, of_last=25),
            **figures(HAND_SET, least=5, most=0.8),
        },
        meaning="exploration that ended before the reward was found",
        remedy="raise temperature or the upper clip, or add a KL penalty, from a checkpoint before the fall",
        min_points=10,
    ),
    StepRule(
        id="entropy-constant",
        family="entropy",
        statement="the entropy repeats to the last digit",
        needs=("entropy",),
        mark=_constant,
        bound="another value in one of {in_a_row} steps",
        parameters={"in_a_row": Parameter(10, "hand-set: floating point repeats by accident hardly twice")},
        meaning="a metric that is not computed (zero), or that is computed of something that does not change",
        remedy="look where the stack computes it",
        min_points=10,
    ),
)
