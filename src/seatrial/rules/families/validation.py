"""Validation that falls or freezes while the reward rises, repeats, or counts more right answers than rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seatrial.evidence.runlog import Series
from seatrial.rules.families.reward import FALL, FALL_BOUND
from seatrial.rules.rule import (
    HAND_SET,
    WILD,
    Finding,
    Level,
    Limits,
    Marks,
    Parameter,
    Rule,
    StepRule,
    Streams,
    Values,
    figures,
    not_triggered,
)
from seatrial.rules.windows import best_so_far, changes, fallen, looks, repeated, trend


def _validation_falls(values: Values, limits: Limits) -> Marks:
    score, reward = values["validation/score"], values["reward/mean"]
    best = best_so_far(score)
    first = np.full(len(score), score[0] if len(score) else np.nan)
    lost = (best - score > limits["share"] * np.abs(best)) & (score < first)
    rising = reward > reward[0] if len(reward) else np.zeros(0, dtype=np.bool_)
    both = repeated(lost & rising, limits)
    return Marks(score, both, lost & rising)


@dataclass(frozen=True, kw_only=True)
class Hacked(Rule):
    """A reward that rises while a validation score falls; each has its own steps."""

    family: str = "reward"
    needs: Sequence[str] = ("validation/score", "reward/mean")

    def judge(self, streams: Streams) -> Finding:
        """Test the trend of each score, and of the reward up to the same step."""
        reward, scores = streams.one("reward/mean"), streams.by_name.get("validation/score", ())
        missing = tuple(name for name in self.needs if streams.one(name) is None)
        if reward is None or missing:
            return not_triggered(f"log {', '.join(missing)}", missing)
        limits = {name: parameter.value for name, parameter in self.parameters.items()}
        least = int(limits["points"])
        judged = [one for one in scores if np.isfinite(one.values).sum() >= least]
        if not judged:
            return not_triggered(f"none of the scores has the {least} points that it needs")
        found: list[tuple[Level, int, Series, float]] = []
        for score in judged:
            best = best_so_far(score.values)
            for number in looks(len(score), least):
                step, z = int(score.steps[number - 1]), trend(score.values[:number])
                if z > -limits["notice"] or trend(reward.values[reward.steps <= step]) < limits["notice"]:
                    continue
                lost = best[number - 1] - score.values[number - 1] > limits["share"] * abs(best[number - 1])
                level = Level.ALARM if z < -limits["z"] and lost else Level.NOTICE
                found.append((level, step, score, z))
        if not found:
            return self._finding(Level.QUIET, judged[0], reward, limits)
        level, at, score, score_z = min(found, key=lambda one: (-one[0], one[1]))
        return self._finding(level, score, reward, limits, at, score_z)

    def _finding(
        self,
        level: Level,
        score: Series,
        reward: Series,
        limits: Limits,
        step: int | None = None,
        z: float | None = None,
    ) -> Finding:
        fired = f'"{score.tag}": {self.statement}; usually {self.meaning}'
        return Finding(
            level=level,
            reason="in order" if level is Level.QUIET else fired,
            tags=(score.tag, reward.tag),
            step=step,
            value=z,
            bound=f"z of the score's trend >= -{limits['z']:g}, while that of the reward is > {limits['notice']:g}",
            num_samples=len(score),
            steps=(int(score.steps[0]), int(score.steps[-1])),
        )


def _freezes(values: Values, limits: Limits) -> Marks:
    score = values["validation/score"]
    frozen = np.zeros(len(score), dtype=np.bool_)
    for number in looks(len(score), int(limits["points"])):
        began, late = score[: number // 2], score[number // 2 : number]
        varied = len(np.unique(began)) >= limits["different"]
        frozen[number - 1] = varied and np.ptp(late) == 0 and 0 < late[0] < began.max()
    return Marks(score, frozen)


def _far_below_its_best(values: Values, limits: Limits) -> Marks:
    return Marks(*fallen(values["validation/score"], limits))


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


RULES: tuple[Rule, ...] = (
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
    Hacked(
        id="reward-hacked",
        statement="the reward rises while the task's own validation falls: the reward is hacked",
        parameters={
            "z": Parameter(2.57, "a score without a trend falls so in 0.5 % of runs, by a Mann-Kendall test"),
            "notice": Parameter(1.96, "2.5 % of runs"),
            "share": Parameter(0.1, "hand-set: of the best score, which it must have lost"),
            "points": Parameter(5, "least number of validations"),
        },
        meaning="a reward that can be had without solving the task",
        remedy="read completions with a high reward; compare the verifiers of training and validation",
    ),
    StepRule(
        id="validation-freezes",
        family="reward",
        statement="the validation score stays at one value below its best, to the last digit",
        needs=("validation/score",),
        mark=_freezes,
        bound="two values in the second half of {points} validations or more, or the best, 0 or 1",
        parameters={
            "points": Parameter(10, "least number of validations"),
            "different": Parameter(3, "hand-set: values in the first half, so that the score can move"),
        },
        meaning="a policy that gives one answer to every prompt: it collapsed, or its updates stopped",
        remedy="read the completions of two validations; go back to the checkpoint of the best one",
        min_points=10,
    ),
    StepRule(
        id="validation-below-its-best",
        family="reward",
        statement="the validation score has fallen far below the best level that it had, and stays there",
        needs=("validation/score",),
        mark=_far_below_its_best,
        bound=FALL_BOUND,
        parameters=FALL,
        meaning="a policy that was driven off, or one that memorises its training prompts",
        remedy="go back to the checkpoint of the best validation, and lower the learning rate",
        min_points=8,
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
