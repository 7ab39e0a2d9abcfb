"""Groups without a signal: all completions of a prompt get one reward, and nothing is learned from them."""

from __future__ import annotations

import numpy as np

from seatrial.rules.families.gradient import no_spread
from seatrial.rules.rule import HAND_SET, WILD, Limits, Marks, Parameter, StepRule, Values, figures
from seatrial.rules.windows import changes, early_median, in_a_row, lasting, looks, near_its_best, rises


def _from_start(values: Values, limits: Limits) -> Marks:
    spread = values["reward/std"]
    number = int(limits["in_a_row"])
    never = np.asarray(np.cumsum(spread != 0) == 0)
    return Marks(spread, in_a_row(never, number))


def _persistent(values: Values, limits: Limits) -> Marks:
    silent = no_spread(values)
    of_last = int(limits["of_last"])
    dead = lasting(silent, limits)
    reward = values["reward/mean"]
    same = in_a_row(~changes(reward) & (reward > 0), of_last - 1)
    learns = rises(reward, of_last, limits["z"])
    return Marks(values["reward/std"], dead & ~near_its_best(reward, of_last) & ~same & ~learns, dead)


def _share(values: Values, limits: Limits) -> Marks:
    share = values["reward/zero_variance_fraction"]
    of_last = int(limits["of_last"])
    dead = lasting(share >= limits["share"], limits)
    return Marks(share, dead & ~near_its_best(values["reward/mean"], of_last), dead)


def _deterministic(values: Values, limits: Limits) -> Marks:
    loss, reward = np.abs(values["loss"]), values["reward/mean"]
    level = early_median(loss, int(limits["early"]))
    of_last = int(limits["of_last"])
    zero = (loss < limits["loss"]) & (level > limits["before"])
    # Where a step has the best reward, its groups agree and no loss is due.
    best, worst = np.fmax.accumulate(reward), np.fmin.accumulate(reward)
    is_best = (best > worst) & (best - reward <= limits["band"] * (best - worst))
    alarm = lasting(zero & ~is_best, limits) & ~near_its_best(reward, of_last)
    # A loss that is printed with four decimals, of a log without a gradient that shows an update.
    largest, number = np.fmax.accumulate(loss), np.arange(1, len(loss) + 1)
    gone = (loss <= limits["printed"]) & (largest > 10 * limits["printed"]) & ~is_best
    most = np.cumsum(gone & ~(values["grad_norm"] > 0)) >= limits["most"] * number
    return Marks(loss, alarm, lasting(zero, limits) | (most & (number >= limits["least"])))


def _stops(values: Values, limits: Limits) -> Marks:
    loss, reward = values["loss"], values["reward/mean"]
    alarm = np.zeros(len(loss), dtype=np.bool_)
    notice = np.zeros(len(loss), dtype=np.bool_)
    for number in looks(len(loss), int(limits["points"])):
        third = number // 3
        began, late = loss[:third], loss[number - third : number]
        smallest = limits["share"] * np.median(np.abs(began))
        stopped = np.mean(np.abs(began) <= limits["zero"]) <= 0.5 and np.all(
            np.abs(late) <= min(smallest, limits["zero"])
        )
        notice[number - 1] = stopped
        alarm[number - 1] = stopped and not near_its_best(reward[:number], third)[-1]
    return Marks(loss, alarm, notice)


RULES = (
    StepRule(
        id="groups-never-differ",
        family="groups",
        statement="no two rewards of a group have ever differed",
        needs=("reward/std",),
        mark=_from_start,
        bound="> 0 in one of the first {in_a_row} points",
        parameters={"in_a_row": Parameter(10, WILD)},
        meaning="a verifier that gives everything the same reward (an answer that is never found), completions "
        "that are all cut off, or a task that no completion or every completion solves",
        remedy="score one right and one wrong completion by hand; read what is sampled",
        catalogue=("SB040",),
        min_points=10,
    ),
    StepRule(
        id="groups-silent",
        family="groups",
        statement="hardly any step has a group whose rewards differ, and the task is not solved",
        needs=("reward/std", "reward/mean"),
        uses=("reward/zero_variance_fraction",),
        mark=_persistent,
        bound="rewards differ in more than {of_last} - {held} of the last {of_last} points, or are at their best",
        parameters={
            "held": Parameter(45, "a healthy wild log of a solved task has none in 73 % of its steps"),
            "of_last": Parameter(50, WILD),
            "z": Parameter(
                1.96, "a trend of the reward that chance shows in 2.5 % of runs: sparse, and learning"
            ),
        },
        meaning="a policy that says one thing for each prompt, random streams that ranks share, or prompts that are "
        "too hard or too easy",
        remedy="read the completions of one group; compare their tokens (`seatrial ledger`)",
        catalogue=("SB040",),
        min_points=50,
    ),
    StepRule(
        id="groups-zero-variance",
        family="groups",
        statement="nearly all groups are without a signal, for long, and the task is not solved",
        needs=("reward/zero_variance_fraction", "reward/mean"),
        mark=_share,
        bound="< {share} in more than {of_last} - {held} of the last {of_last} points, or rewards at their best",
        parameters={
            "share": Parameter(0.95, "63 % of groups without a signal is what a healthy run shows"),
            **figures(WILD, held=45, of_last=50),
        },
        meaning="prompts that are too hard or too easy, or completions that are copies of one another",
        remedy="draw other prompts, or filter groups; read the completions of one group",
        catalogue=("SB040",),
        min_points=50,
    ),
    StepRule(
        id="policy-deterministic",
        family="groups",
        statement="the policy loss is zero in most steps although the task is not solved",
        needs=("loss", "reward/mean"),
        uses=("grad_norm",),
        mark=_deterministic,
        bound="|loss| >= {loss} in over {of_last} - {held} of the last {of_last} points, or never above {before} "
        "(notice: <= {printed} in {most} of {least} points or more)",
        parameters={
            "loss": Parameter(1e-7, WILD),
            "before": Parameter(1e-5, "a loss that is as small from the start says nothing"),
            "band": Parameter(0.1, "share of the range of rewards that is at their best"),
            **figures(WILD, early=20, held=35, of_last=50),
            "printed": Parameter(1e-4, "four decimals, as loops print a loss"),
            **figures(HAND_SET, most=0.5, least=15),
        },
        meaning="a policy that gives one completion a prompt: rewards of a group are equal, no advantage is left",
        remedy="read the completions of one group; sample at a higher temperature from an earlier checkpoint",
        min_points=15,
    ),
    StepRule(
        id="updates-stop",
        family="groups",
        statement="the policy loss has been zero for the last third of the run, and the task is not solved",
        needs=("loss", "reward/mean"),
        mark=_stops,
        bound="|loss| > {zero} in one of the last third of {points} points or more, or less than {share} of its start",
        parameters={
            "zero": Parameter(1e-4, "four decimals, as loops print a loss"),
            "share": Parameter(
                0.01, "of the median of the first third: a loss that was small all along says nothing"
            ),
            "points": Parameter(15, "least number of points"),
        },
        meaning="a policy that gives one completion a prompt, or an optimizer that skips every step",
        remedy="read the completions of one group; look at the count of skipped steps and at the entropy",
        min_points=15,
    ),
)
