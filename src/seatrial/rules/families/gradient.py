"""Gradients that are zero, constant, dead or far too large."""

from __future__ import annotations

import numpy as np

from seatrial.rules.rule import HAND_SET, WILD, Limits, Marks, Parameter, StepRule, Values, figures
from seatrial.rules.windows import (
    Flags,
    beyond_scale,
    by_chance,
    changes,
    early_median,
    in_a_row,
    lasting,
    near_its_best,
    share_before,
    trailing_mean,
)


def no_spread(values: Values) -> Flags:
    """Say where the log shows that every group had equal rewards, so that no gradient is due."""
    return np.asarray((values["reward/std"] == 0) | (values["reward/zero_variance_fraction"] >= 1))


def _zero(values: Values, limits: Limits) -> Marks:
    gradient, reward = values["grad_norm"], values["reward/mean"]
    number = int(limits["in_a_row"])
    zero = in_a_row(gradient == 0, number)
    # Where all rewards of each group are equal no gradient is due, for a while: rewards may be sparse.
    # Where the log has no spread, a reward that stays the same shows it.
    explained = in_a_row(no_spread(values), number)
    same = in_a_row(np.isfinite(reward) & ~changes(reward), number - 1)
    # A trainer that logs every n steps logs the gradient of one of them next to the means of all.
    silent = trailing_mean(np.nan_to_num(values["reward/zero_variance_fraction"]), number)
    share = np.fmax(share_before(gradient == 0), np.where(silent >= limits["silent"], silent, 0.0))
    chance = by_chance(gradient == 0, share, limits["chance"])
    long = in_a_row(gradient == 0, int(limits["sparse"]))
    solved = (explained | same) & (near_its_best(reward, number) | (same & (reward > 0)))
    return Marks(gradient, zero & ~solved & (~(explained | same | chance) | long), zero)


def _constant(values: Values, limits: Limits) -> Marks:
    gradient = values["grad_norm"]
    number = int(limits["in_a_row"])
    same = in_a_row(~changes(gradient) & (gradient != 0), number)
    loss_same = in_a_row(~changes(values["loss"]) & np.isfinite(values["loss"]), number)
    return Marks(gradient, same & loss_same, same)


def _exploding(values: Values, limits: Limits) -> Marks:
    gradient = values["grad_norm"]
    level = early_median(gradient, int(limits["early"]))
    factor = np.where(level > 0, gradient / level, np.nan)
    return Marks(
        factor,
        lasting(factor > limits["factor"], limits) | beyond_scale(gradient, limits["times"], limits["least"]),
        lasting(factor > limits["notice"], limits),
    )


def _dead(values: Values, limits: Limits) -> Marks:
    gradient = values["grad_norm"]
    level = early_median(gradient, int(limits["early"]))
    factor = np.where(level > 0, gradient / level, np.nan)
    dead = factor < limits["factor"]
    of_last = int(limits["of_last"])
    # Of a step among many without a signal, a gradient of exactly zero is no contradiction to rewards that differ.
    silent = values["reward/zero_variance_fraction"] >= limits["silent"]
    spread = (values["reward/std"] > 0) & ~((gradient == 0) & silent)
    return Marks(
        factor,
        lasting(dead & spread, limits) & ~near_its_best(values["reward/mean"], of_last),
        lasting(dead, limits),
    )


_SILENT = "hand-set: share of groups without a signal, from which on a step may have none"

RULES = (
    StepRule(
        id="gradient-zero",
        family="gradient",
        statement="the gradient norm is exactly zero, step after step",
        needs=("grad_norm",),
        uses=("reward/std", "reward/zero_variance_fraction", "reward/mean"),
        mark=_zero,
        bound="> 0 in one of {in_a_row} steps, or of {sparse} while rewards are equal, or a solved task",
        parameters={
            "in_a_row": Parameter(
                5, "docs/extend/verdicts.md; the longest run of zeros in a healthy wild log is shorter"
            ),
            "sparse": Parameter(
                50, "hand-set: points, where the reward stays the same and no spread is logged"
            ),
            "silent": Parameter(0.5, _SILENT),
            "chance": Parameter(
                0.01, "hand-set: a run of zeros that the share of zeros before it makes as likely is no fault"
            ),
        },
        meaning="rewards that never differ, a mask of zeros, frozen parameters, or an update that is skipped",
        remedy="look at the rewards of one group and at the sum of the loss mask; then `seatrial relations`",
        catalogue=("SB001", "SB002", "SB007"),
    ),
    StepRule(
        id="gradient-constant",
        family="gradient",
        statement="gradient norm and loss repeat to the last digit",
        needs=("grad_norm",),
        uses=("loss",),
        mark=_constant,
        bound="another value in one of {in_a_row} steps",
        parameters={"in_a_row": Parameter(5, "hand-set: floating point repeats by accident hardly twice")},
        meaning="a metric that is logged again and again, or one batch that is trained forever; a gradient norm alone "
        "that repeats may be logged after clipping",
        remedy="compare the prompts of two of these steps (`seatrial ledger`)",
    ),
    StepRule(
        id="gradient-exploding",
        family="gradient",
        statement="the gradient norm stays far above the level that the run began at",
        needs=("grad_norm",),
        mark=_exploding,
        bound="<= {factor} times the median of the first {early} points, except for spikes (notice {notice} times); "
        "most of the last tenth <= {times} times what came before, or <= {least}",
        parameters={
            "times": Parameter(30, "healthy runs of the corpus reach 7"),
            "least": Parameter(10, HAND_SET),
            "early": Parameter(10, WILD),
            "factor": Parameter(100, "ten times the median alarms falsely on 10 of 33 healthy wild logs"),
            **figures(WILD, notice=10, held=5, of_last=8),
        },
        meaning="a learning rate that is too large, or ratios that are not clipped",
        remedy="lower the learning rate, and look at the first step at which the ratio or the KL left its range",
        min_points=10,
    ),
    StepRule(
        id="gradient-dead",
        family="gradient",
        statement="the gradient is almost zero although rewards differ and the task is not solved",
        needs=("grad_norm",),
        uses=("reward/std", "reward/zero_variance_fraction", "reward/mean"),
        mark=_dead,
        bound=">= {factor} of the median of the first {early} points in {of_last} steps, where rewards differ",
        parameters={
            **figures(WILD, early=10, factor=1e-3, held=20, of_last=25),
            "silent": Parameter(0.5, _SILENT),
        },
        meaning="a policy that has become deterministic, or a loss that saturates",
        remedy="read completions of one group: if all are alike, go back to a checkpoint before the entropy fell",
        min_points=25,
    ),
)
