"""Rewards that never move, fall away, or rise while validation falls."""

from __future__ import annotations

import numpy as np

from seatrial.rules.rule import HAND_SET, WILD, Limits, Marks, Parameter, StepRule, Values, figures
from seatrial.rules.windows import (
    best_so_far,
    changes,
    early_mean_and_spread,
    in_a_row,
    lasting,
    looks,
    near_its_best,
    repeated,
    trailing_mean,
    trailing_median,
    trend,
)


def _constant(values: Values, limits: Limits) -> Marks:
    reward = values["reward/mean"]
    number = int(limits["in_a_row"])
    never_moved = in_a_row(np.asarray(np.cumsum(changes(reward)) == 1), number)
    same = in_a_row(~changes(reward), number)
    return Marks(reward, never_moved & (reward <= limits["zero"]), never_moved | same)


def _collapse(values: Values, limits: Limits) -> Marks:
    reward = values["reward/mean"]
    window = int(limits["window"])
    start, spread = early_mean_and_spread(reward, window)
    # A reward that leaps a hundredfold once in a while lifts the mean of its window, and is no gain that can be lost.
    now = trailing_median(reward, window)
    best = best_so_far(now)
    risen = best - start > limits["rise"] * spread
    # What the last points differ by among themselves is no loss.
    mean = trailing_mean(reward, window)
    noise = np.sqrt(np.maximum(trailing_mean(reward**2, window) - mean**2, 0))
    lost = risen & (best - now > limits["share"] * (best - start)) & (best - now > noise)
    below = (start - now > limits["below"] * spread) & (spread > 0)
    return Marks(now, lasting(lost | below, limits), lost | below)


def _falls_at_once(values: Values, limits: Limits) -> Marks:
    reward = values["reward/mean"]
    window = int(limits["window"])
    before = np.full(len(reward), np.nan)
    spread = np.full(len(reward), np.nan)
    if len(reward) > window:
        mean, mean_square = trailing_mean(reward, window), trailing_mean(reward**2, window)
        before[window:] = mean[:-window]
        spread[window:] = np.sqrt(np.maximum(mean_square - mean**2, 0))[:-window]
    fallen = (before - trailing_mean(reward, window) > limits["spreads"] * spread) & (spread > 0)
    floor = repeated(reward <= np.fmin.accumulate(reward), limits)
    return Marks(reward, fallen & floor, fallen)


def _validation_falls(values: Values, limits: Limits) -> Marks:
    score, reward = values["validation/score"], values["reward/mean"]
    best = best_so_far(score)
    first = np.full(len(score), score[0] if len(score) else np.nan)
    lost = (best - score > limits["share"] * np.abs(best)) & (score < first)
    rising = reward > reward[0] if len(reward) else np.zeros(0, dtype=np.bool_)
    both = repeated(lost & rising, limits)
    return Marks(score, both, lost & rising)


def _hacked(values: Values, limits: Limits) -> Marks:
    score, reward = values["validation/score"], values["reward/mean"]
    found, far = np.zeros(len(score), dtype=np.bool_), np.zeros(len(score), dtype=np.bool_)
    best = best_so_far(score)
    for number in looks(len(score), int(limits["points"])):
        found[number - 1] = trend(reward[:number]) > limits["z"] and trend(score[:number]) < -limits["z"]
        far[number - 1] = best[number - 1] - score[number - 1] > limits["share"] * np.abs(best[number - 1])
    return Marks(score, found & far, found)


def _does_not_learn(values: Values, limits: Limits) -> Marks:
    reward, steps = values["reward/mean"], values["step"]
    others = [values[name] for name in ("entropy", "kl/reference", "length/completion_mean")]
    others = [one for one in others if np.isfinite(one).sum() >= limits["points"]]
    stuck, long = np.zeros(len(reward), dtype=np.bool_), np.zeros(len(reward), dtype=np.bool_)
    for number in looks(len(reward), int(limits["points"])) if others else ():
        span = steps[number - 1] - steps[0]
        still = all(abs(trend(one[:number])) < limits["z"] for one in (reward, *others))
        stuck[number - 1] = span >= limits["steps"] and still
        long[number - 1] = span >= 2 * limits["steps"] and len(others) > 1
    moved = np.ptp(reward) > 0 if len(reward) else False
    return Marks(reward, stuck & long & moved & ~near_its_best(reward, int(limits["points"])), stuck)


def _verifier_errors(values: Values, limits: Limits) -> Marks:
    errors, rows = values["reward/verifier_errors"], values["rows/batch"]
    share = np.where(np.isfinite(rows) & (rows > 0), errors / rows, np.where(errors > 0, 1.0, 0.0))
    number = int(limits["in_a_row"])
    return Marks(share, in_a_row(share > limits["share"], number), errors > 0)


def _above_the_reward(values: Values, limits: Limits) -> Marks:
    score, reward = values["validation/score"], values["validation/reward"]
    gap = score - reward
    may_be_negative = np.minimum.accumulate(reward) < 0
    return Marks(gap, repeated((gap > limits["rounding"]) & ~may_be_negative, limits))


def _validation_repeats(values: Values, limits: Limits) -> Marks:
    score = values["validation/reward"]
    # A score of nothing or of everything repeats in a run that is stuck or done.
    same = ~changes(score) & (score != 0) & (score != 1)
    return Marks(score, repeated(same, limits))


RULES = (
    StepRule(
        id="verifier-errors",
        family="reward",
        statement="a verifier fails on many completions, which count as rewards",
        needs=("reward/verifier_errors",),
        uses=("rows/batch",),
        mark=_verifier_errors,
        bound="on at most {share} of the rows in one of {in_a_row} steps (notice: none)",
        parameters={
            "share": Parameter(0.05, "the share that the ledger's law allows"),
            "in_a_row": Parameter(5, HAND_SET),
        },
        meaning="an answer format that the verifier cannot read, a sandbox that is down, or too short a time limit",
        remedy="call the verifier on one of these rows by hand; refrl prints the first error of a step",
        catalogue=("SB036",),
    ),
    StepRule(
        id="validation-above-its-reward",
        family="reward",
        statement="the share of right answers in validation is above the mean reward",
        needs=("validation/score", "validation/reward"),
        mark=_above_the_reward,
        bound="<= the mean reward, to which right answers give 1 and others nothing or more",
        parameters={
            "rounding": Parameter(1e-6, "hand-set: float32 keeps seven digits"),
            "in_a_row": Parameter(2, HAND_SET),
        },
        meaning="an accuracy that counts partial rewards as right answers",
        remedy="count the full rewards among the rows of one validation",
        min_points=2,
    ),
    StepRule(
        id="validation-repeats",
        family="reward",
        statement="validation gives the same reward to the last digit, again and again",
        needs=("validation/reward",),
        mark=_validation_repeats,
        bound="another value in one of {in_a_row} validations after the first",
        parameters={"in_a_row": Parameter(3, "hand-set: a mean over rows moves with the weights")},
        meaning="validation that samples with old weights, or reads a cached result",
        remedy="print the sampler's weight version at each validation",
        min_points=4,
    ),
    StepRule(
        id="reward-constant",
        family="reward",
        statement="the reward has been zero, or below, and the same from the first step on",
        needs=("reward/mean",),
        mark=_constant,
        bound="another value in one of the first {in_a_row} points",
        parameters={
            "in_a_row": Parameter(10, WILD),
            "zero": Parameter(0, "a constant above it may be a solved task"),
        },
        meaning="a verifier that fails on everything: an answer format that is never met, an exception that counts as "
        "zero, a missing field; or completions that are cut off before the answer",
        remedy="put a right answer through the verifier by hand",
        catalogue=("SB036",),
        min_points=10,
    ),
    StepRule(
        id="reward-collapse",
        family="reward",
        statement="the reward has lost what it had gained, or fallen far below where it began, and stays there",
        needs=("reward/mean",),
        mark=_collapse,
        bound="median of {window} points keeps 1 - {share} of a rise of {rise} spreads, within {below} of the start",
        parameters={
            "window": Parameter(10, WILD),
            "rise": Parameter(3, "spreads of the first points"),
            "share": Parameter(0.9, WILD),
            "below": Parameter(4, "a healthy wild log falls two spreads below its start before it rises"),
            **figures(WILD, held=15, of_last=20),
        },
        meaning="a policy that was driven off: a learning rate that is too large, stale samples, a mismatch of sampler "
        "and trainer",
        remedy="find the step at which KL, entropy or gradient left their range, and resume before it",
        min_points=20,
    ),
    StepRule(
        id="reward-falls-at-once",
        family="reward",
        statement="the reward fell to its lowest within a few steps and does not leave it",
        needs=("reward/mean",),
        mark=_falls_at_once,
        bound="mean of {window} points within {spreads} spreads of the {window} before, or above its lowest",
        parameters=figures(WILD, window=6, spreads=6, in_a_row=6),
        meaning="a verifier that broke during the run, or weights that were destroyed by one update",
        remedy="read completions of the step before and after; put a right answer through the verifier",
        min_points=12,
    ),
    StepRule(
        id="does-not-learn",
        family="reward",
        statement="the reward has no trend over hundreds of steps, and entropy, KL and length do not move either",
        needs=("reward/mean",),
        uses=("entropy", "kl/reference", "length/completion_mean"),
        mark=_does_not_learn,
        bound="|z| >= {z} in a Mann-Kendall test of one over {steps} steps (alarm: two others, twice the steps)",
        parameters={
            "z": Parameter(1.96, "a series without a trend exceeds it in 5 % of runs"),
            "steps": Parameter(200, HAND_SET),
            "points": Parameter(20, "least number of points"),
        },
        meaning="a learning rate that is too small, rewards that the model never or always gets, or updates that never "
        "reach the sampler",
        remedy="compare a weight before and after a step; look at the share of groups whose rewards differ",
        min_points=20,
    ),
    StepRule(
        id="reward-hacked",
        family="reward",
        statement="the reward rises while the task's own validation falls: the reward is hacked",
        needs=("validation/score", "reward/mean"),
        mark=_hacked,
        bound="no trend up of the reward and down of validation at |z| > {z}; alarm: {share} below the best",
        parameters={
            "z": Parameter(1.96, "both together in fewer than 0.1 % of runs without a trend"),
            "share": Parameter(0.1, HAND_SET),
            "points": Parameter(5, "least number of validations"),
        },
        meaning="a reward that can be had without solving the task",
        remedy="read completions with a high reward; compare the verifiers of training and validation",
        min_points=5,
    ),
    StepRule(
        id="validation-falls",
        family="reward",
        statement="validation falls below its start while the training reward is above its own",
        needs=("validation/score", "reward/mean"),
        mark=_validation_falls,
        bound="within {share} of the best validation, or above the first",
        parameters=figures(WILD, share=0.3, in_a_row=3),
        meaning="a reward that is gamed, training prompts that are memorised, or validation of old weights",
        remedy="read completions of validation; compare the verifiers of training and validation",
        min_points=4,
    ),
)
