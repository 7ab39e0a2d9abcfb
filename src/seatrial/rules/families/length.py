"""Lengths of completions: at the limit, collapsed, or growing with the reward."""

from __future__ import annotations

import numpy as np

from seatrial.rules.rule import HAND_SET, WILD, Limits, Marks, Parameter, StepRule, Values, figures
from seatrial.rules.windows import (
    early_median,
    lasting,
    looks,
    most_gained,
    near_its_best,
    repeated,
    risen,
    rises,
    trailing_mean,
    trend,
)


def _at_cap(values: Values, limits: Limits) -> Marks:
    share = values["truncation_fraction"]
    at_cap = repeated(share >= limits["share"], limits)
    return Marks(
        share, at_cap & ~risen(values["reward/mean"], int(limits["in_a_row"]), limits["errors"]), at_cap
    )


def _cut_and_flat(values: Values, limits: Limits) -> Marks:
    share, reward = values["truncation_fraction"], values["reward/mean"]
    window = int(limits["window"])
    cut = trailing_mean(share, 2 * window) > limits["share"]
    flat = ~risen(reward, window, limits["errors"])
    climbs = rises(reward, 2 * window, limits["z"])
    no_gain = np.zeros(len(reward), dtype=np.bool_)
    for number in looks(len(reward), 2 * window):
        no_gain[number - 1] = most_gained(reward[:number]) < limits["gain"]
    return Marks(trailing_mean(share, 2 * window), cut & flat & ~climbs & no_gain, cut & flat)


def _at_limit(values: Values, limits: Limits) -> Marks:
    """Judge the last half of the points so far."""
    share, length = values["truncation_fraction"], values["length/completion_mean"]
    longest = values["length/completion_max"]
    full = (longest == np.fmax.accumulate(longest)) & (length >= limits["of_longest"] * longest)
    # A mean that is the same whole number again and again is that of completions that are all cut there.
    whole = (length == np.fmax.accumulate(length)) & (length == np.round(length)) & (length > 1)
    at_limit = (share >= limits["share"]) | (~np.isfinite(share) & (full | whole))
    steps, reward = values["step"], values["reward/mean"]
    found, better = np.zeros(len(length), dtype=np.bool_), np.zeros(len(length), dtype=np.bool_)
    for number in looks(len(length), int(limits["points"])):
        late, cut = at_limit[number // 2 : number], share[number // 2 : number]
        is_long = steps[number - 1] - steps[0] >= limits["steps"]
        is_cut = np.isfinite(cut).all() and cut.mean() >= limits["mean"]
        is_full = late.mean() >= limits["of_late"]
        found[number - 1] = is_long and (is_full or is_cut)
        # Where some completions end, the reward must be known not to rise.
        may_gain = not is_full and most_gained(reward[:number]) >= limits["gain"]
        solved = near_its_best(reward[:number], number - number // 2)[-1]
        better[number - 1] = solved or may_gain or trend(reward[:number]) > limits["z"]
    return Marks(np.where(np.isfinite(share), share, length), found & ~better & np.isfinite(reward), found)


def _runs_away(values: Values, limits: Limits) -> Marks:
    length, reward = values["length/completion_mean"], values["reward/mean"]
    window = int(limits["window"])
    now = trailing_mean(length, window)
    grown = now / early_median(length, window)
    longer = (grown > limits["factor"]) & (now > limits["tokens"])
    better = risen(reward, window, limits["errors"])
    return Marks(grown, repeated(longer & ~better, limits), repeated(longer, limits))


def _collapse(values: Values, limits: Limits) -> Marks:
    length, reward = values["length/completion_mean"], values["reward/mean"]
    level = early_median(length, int(limits["early"]))
    start = early_median(reward, int(limits["early"]))
    short = lasting(length < limits["share"] * level, limits)
    worse = trailing_mean(reward, int(limits["of_last"])) <= start
    return Marks(length / level, short & worse, short)


def _grows(values: Values, limits: Limits) -> Marks:
    length, share = values["length/completion_mean"], values["truncation_fraction"]
    window = int(limits["window"])
    longer = trailing_mean(length, window) > limits["factor"] * early_median(length, window)
    cut = trailing_mean(share, window) > early_median(share, window) + limits["share"]
    better = trailing_mean(values["reward/mean"], window) > early_median(values["reward/mean"], window)
    return Marks(share, np.zeros(len(length), dtype=np.bool_), longer & cut & better)


RULES = (
    StepRule(
        id="length-at-cap",
        family="length",
        statement="every completion is cut off at the limit, step after step, and the reward does not rise",
        needs=("truncation_fraction",),
        uses=("reward/mean",),
        mark=_at_cap,
        bound="< {share} in one of {in_a_row} steps, or a reward that rose by {errors} standard errors",
        parameters={
            "share": Parameter(0.99, WILD),
            "errors": Parameter(2, "a healthy TRL run of ours is paid for never ending"),
            "in_a_row": Parameter(
                40, "one of 100 clean runs of an untrained tiny model has 30 in a row, its whole length"
            ),
        },
        meaning="a limit that is too low for the task, or a model that never ends: its end token is masked, is not "
        "among the stop ids, or entropy exploded",
        remedy="read a completion to its end; look whether the end token trains (`seatrial ledger`)",
        catalogue=("SB001", "SB002", "SB030", "SB045"),
        min_points=20,
    ),
    StepRule(
        id="truncated-and-flat",
        family="length",
        statement="most completions are cut off, and the reward does not rise",
        needs=("truncation_fraction", "reward/mean"),
        mark=_cut_and_flat,
        bound="mean of {window} x 2 points <= {share}, or a reward that rose by {errors} standard errors (alarm: or "
        "may have gained {gain} spreads)",
        parameters={
            "share": Parameter(0.7, WILD),
            "window": Parameter(
                30, "40 points are too few: clean runs of an untrained tiny model are still slow there"
            ),
            "errors": Parameter(2, WILD),
            "gain": Parameter(
                1, "hand-set: spreads that the reward of the last third may be above the first"
            ),
            "z": Parameter(1.96, "a trend of the reward over the run that chance shows in 2.5 % of runs"),
        },
        meaning="answers that do not fit into the limit and so get no reward",
        remedy="raise the limit of new tokens, or leave cut rows out of the loss",
        min_points=60,
    ),
    StepRule(
        id="length-at-limit",
        family="length",
        statement="completions have been at their limit for half of the run, and the reward does not rise",
        needs=("length/completion_mean",),
        uses=("truncation_fraction", "length/completion_max", "reward/mean"),
        mark=_at_limit,
        bound="truncation < {share}, or a mean < {of_longest} of a constant longest, in 1 - {of_late} of those points; "
        "a mean truncation < {mean}, or a reward that may have gained {gain} spreads",
        parameters={
            "share": Parameter(0.9, WILD),
            "mean": Parameter(0.8, HAND_SET),
            "gain": Parameter(
                0.75, "hand-set: spreads that the reward of the last third may be above the first"
            ),
            "of_longest": Parameter(0.98, HAND_SET),
            "of_late": Parameter(0.9, HAND_SET),
            "points": Parameter(15, "least number of points"),
            "steps": Parameter(60, "a clean run of an untrained tiny model is at its limit for 30 steps"),
            "z": Parameter(1.96, "a trend of the reward that chance shows in 2.5 % of runs"),
        },
        meaning="a limit that is too low for the task, or a model that does not end its answers",
        remedy="read a completion to its end; raise the limit of new tokens",
        catalogue=("SB001", "SB045"),
        min_points=15,
    ),
    StepRule(
        id="length-runs-away",
        family="length",
        statement="completions have become several times as long as at the start, and the reward is no better",
        needs=("length/completion_mean",),
        uses=("reward/mean",),
        mark=_runs_away,
        bound="<= {factor} times the median of the first {window} points, or {tokens} tokens, or a reward that rose",
        parameters=figures(HAND_SET, factor=4, tokens=200, window=5, errors=2, in_a_row=3),
        meaning="a reward that pays for length, an end token that is no longer trained, or an entropy that explodes",
        remedy="read the longest completions; look at the entropy and at the share that is cut off",
        min_points=12,
    ),
    StepRule(
        id="length-collapse",
        family="length",
        statement="completions have become a small part of what they were, and the reward is no better",
        needs=("length/completion_mean", "reward/mean"),
        mark=_collapse,
        bound=">= {share} of the median of the first {early} points",
        parameters=figures(WILD, early=10, share=0.1, held=10, of_last=12),
        meaning="generations that are stopped early, a penalty on length that wins, or rows that come back empty",
        remedy="look at the finish reasons, and at what aborts generation during a weight sync",
        catalogue=("SB050",),
        min_points=12,
    ),
    StepRule(
        id="length-with-reward",
        family="length",
        statement="completions grow into the limit while the reward rises",
        needs=("length/completion_mean", "truncation_fraction", "reward/mean"),
        mark=_grows,
        bound="truncation within {share} of its start while lengths are {factor} times those of the start",
        parameters=figures(WILD, window=10, factor=1.5, share=0.3),
        meaning="a reward that pays for length, or a loss that averages by row and favours long wrong answers",
        remedy="plot reward against length within a step",
        min_points=20,
    ),
)
