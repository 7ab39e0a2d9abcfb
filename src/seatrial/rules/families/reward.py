"""Rewards that never move, have no trend, or fall away."""

from __future__ import annotations

import numpy as np

from seatrial.rules.rule import (
    HAND_SET,
    WILD,
    Limits,
    Marks,
    Parameter,
    Rule,
    StepRule,
    Values,
    figures,
)
from seatrial.rules.windows import (
    Floats,
    best_so_far,
    changes,
    close_looks,
    early_mean_and_spread,
    fallen,
    in_a_row,
    largest_drop,
    lasting,
    looks,
    most_gained,
    near_its_best,
    repeated,
    trailing_mean,
    trailing_median,
    trend,
)


def _constant(values: Values, limits: Limits) -> Marks:
    reward, steps = values["reward/mean"], values["step"]
    number = int(limits["in_a_row"])
    unmoved = np.asarray(np.cumsum(changes(reward)) == 1)
    never_moved = in_a_row(unmoved, number)
    # A log with a row every ten steps or more has as much behind fewer rows.
    few, span = in_a_row(unmoved, int(limits["rows"])), steps - steps[:1]
    for_long = few & (span >= 2 * limits["steps"])
    same = in_a_row(~changes(reward), number)
    alarm = (never_moved | for_long) & (reward <= limits["zero"])
    return Marks(reward, alarm, never_moved | same | (few & (span >= limits["steps"])))


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


def _declines(values: Values, limits: Limits) -> Marks:
    reward, steps = values["reward/mean"], values["step"]
    falls, alarm = np.zeros(len(reward), dtype=np.bool_), np.zeros(len(reward), dtype=np.bool_)
    for number in looks(len(reward), int(limits["points"])):
        third = number // 3
        began, late = reward[:third], reward[number - third : number]
        z = limits["z"] if number >= limits["many"] else limits["z_few"]
        falls[number - 1] = trend(reward[:number]) < -z
        alarm[number - 1] = falls[number - 1] and _lost(began, late) > limits["spreads"]
        if number < limits["least"] or steps[number - 1] - steps[0] < limits["steps"]:
            continue
        drop, place = largest_drop(reward[:number])
        if drop > limits["drop"] and place <= third:
            alarm[number - 1] |= _lost(reward[:place], late) > limits["spreads"]
    return Marks(reward, alarm, falls)


def _lost(before: Floats, after: Floats) -> float:
    """Return by how many spreads of the points a reward is lower than before."""
    spread = float(np.sqrt((before.var(ddof=1) + after.var(ddof=1)) / 2))
    return float(before.mean() - after.mean()) / spread if spread else np.inf * (before[0] - after[0])


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


def _far_below_its_best(values: Values, limits: Limits) -> Marks:
    return Marks(*fallen(values["reward/mean"], limits))


def _freezes(values: Values, limits: Limits) -> Marks:
    reward = values["reward/mean"]
    frozen = np.zeros(len(reward), dtype=np.bool_)
    for number in close_looks(len(reward), int(limits["points"])):
        late = max(int(limits["least"]), -(-number // 3))
        before, last = reward[: number - late], reward[number - late : number]
        best, worst = max(before.max(), last[0]), min(before.min(), last[0])
        varied = len(np.unique(before)) >= limits["different"]
        frozen[number - 1] = (
            varied and np.ptp(last) == 0 and best - last[0] > limits["share"] * (best - worst)
        )
    return Marks(reward, frozen)


def _does_not_learn(values: Values, limits: Limits) -> Marks:
    reward, steps = values["reward/mean"], values["step"]
    others = [values[name] for name in ("entropy", "kl/reference", "length/completion_mean")]
    others = [one for one in others if np.isfinite(one).sum() >= limits["points"]]
    flat, stuck = np.zeros(len(reward), dtype=np.bool_), np.zeros(len(reward), dtype=np.bool_)
    moves = np.fmax.accumulate(reward) > np.fmin.accumulate(reward)
    unsolved = moves & ~near_its_best(reward, int(limits["points"]))
    was_flat = False
    for number in looks(len(reward), int(limits["points"])):
        span = steps[number - 1] - steps[0]
        is_flat = abs(trend(reward[:number])) < limits["z"] and most_gained(reward[:number]) < limits["gain"]
        # A run that has not learned yet is flat once: two looks agree, the later one after a quarter more.
        if is_flat and was_flat:
            flat[number - 1] = span >= limits["notice"]
            still = len(others) > 1 and all(abs(trend(one[:number])) < limits["z"] for one in others)
            stuck[number - 1] = span >= 2 * limits["steps"] and still
        was_flat = is_flat
    return Marks(reward, stuck & unsolved, flat & unsolved)


def _verifier_errors(values: Values, limits: Limits) -> Marks:
    errors, rows = values["reward/verifier_errors"], values["rows/batch"]
    share = np.where(np.isfinite(rows) & (rows > 0), errors / rows, np.where(errors > 0, 1.0, 0.0))
    number = int(limits["in_a_row"])
    return Marks(share, in_a_row(share > limits["share"], number), errors > 0)


FALL_BOUND = (
    "the last tenth of the points within {widths} noise widths of the best level (9 for two points, 7 for "
    "three), or above 1 - {part} of all levels, or above 1 - {share} of the best"
)
"""Of a level that has fallen far below its best; its figures are `FALL`."""
FALL = {
    "widths": Parameter(6.5, "falls of healthy runs of the corpus, thinned or whole, reach 4"),
    "part": Parameter(0.5, HAND_SET),
    "share": Parameter(0.2, HAND_SET),
}
"""What a fall is: see `fallen`."""

RULES: tuple[Rule, ...] = (
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
        id="reward-constant",
        family="reward",
        statement="the reward has been zero, or below, and the same from the first step on",
        needs=("reward/mean",),
        mark=_constant,
        bound="another value in one of the first {in_a_row} points, or of {rows} over 2 x {steps} steps",
        parameters={
            "in_a_row": Parameter(10, WILD),
            "rows": Parameter(5, HAND_SET),
            "steps": Parameter(50, HAND_SET),
            "zero": Parameter(0, "a constant above it may be a solved task"),
        },
        meaning="a verifier that fails on everything: an answer format that is never met, an exception that counts as "
        "zero, a missing field; or completions that are cut off before the answer",
        remedy="put a right answer through the verifier by hand",
        catalogue=("SB036",),
        min_points=5,
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
        id="reward-declines",
        family="reward",
        statement="the reward falls over the run, or to a lower level at which it stays",
        needs=("reward/mean",),
        mark=_declines,
        bound="z of a Mann-Kendall test >= -{z} (-{z_few} below {many} points); alarm: the last third {spreads} "
        "spreads below the first, or below the "
        "points before a change in the first third (z of a rank test > {drop})",
        parameters={
            "z": Parameter(2.57, "a reward without a trend falls so in 0.5 % of runs"),
            "spreads": Parameter(1.5, "hand-set: of the points before and in the last third"),
            "drop": Parameter(3, "a reward without a change exceeds it at some place in 2 % of runs"),
            "steps": Parameter(90, "hand-set: least number of steps for a change"),
            "points": Parameter(12, "least number of points"),
            "least": Parameter(30, "least number of points for a change"),
            "many": Parameter(30, HAND_SET),
            "z_few": Parameter(
                3.1, "healthy runs of the corpus, thinned or whole, reach 3 at their first points"
            ),
        },
        meaning="updates of the wrong sign or size, or prompts that get harder",
        remedy="score the prompts of the first steps again with the last weights",
        min_points=12,
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
        id="reward-below-its-best",
        family="reward",
        statement="the reward has fallen far below the best level that it had, and stays there",
        needs=("reward/mean",),
        mark=_far_below_its_best,
        bound=FALL_BOUND,
        parameters=FALL,
        meaning="a policy that was driven off, a verifier that broke, or harder prompts",
        remedy="read completions of the best steps and of the last; find what else changed at the fall",
        min_points=8,
    ),
    StepRule(
        id="reward-freezes",
        family="reward",
        statement="the reward stays at one value below its best, to the last digit",
        needs=("reward/mean",),
        mark=_freezes,
        bound="two values in the last third ({least} points or more), or within {share} of the best",
        parameters=figures(HAND_SET, points=12, least=8, different=3, share=0.3),
        meaning="a policy that gives one answer to every prompt, or a reward that is no longer computed",
        remedy="read completions of two steps; go back to a checkpoint before the reward froze",
        min_points=12,
    ),
    StepRule(
        id="does-not-learn",
        family="reward",
        statement="the reward has no trend over the run, and is not at its best",
        needs=("reward/mean",),
        uses=("entropy", "kl/reference", "length/completion_mean"),
        mark=_does_not_learn,
        bound="|z| >= {z} in a Mann-Kendall test, or a gain that may exceed {gain} spreads, at one of two looks; "
        "alarm: entropy, KL and length without a trend over 2 x {steps} steps",
        parameters={
            "z": Parameter(1.96, "a series without a trend exceeds it in 5 % of runs"),
            "notice": Parameter(90, "hand-set: steps"),
            "gain": Parameter(
                0.75, "hand-set: spreads of the points that the last third may be above the first, at 95 %"
            ),
            "steps": Parameter(200, HAND_SET),
            "points": Parameter(15, "least number of points"),
        },
        meaning="a learning rate that is too small, rewards that the model never or always gets, or updates that never "
        "reach the sampler",
        remedy="compare a weight before and after a step; look at the share of groups whose rewards differ",
        min_points=15,
    ),
)
