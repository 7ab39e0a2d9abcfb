"""Steps that repeat, are missing, or are written twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seatrial.evidence.runlog import Series
from seatrial.rules.rule import (
    Finding,
    Level,
    Limits,
    Marks,
    Parameter,
    Rule,
    StepRule,
    Streams,
    Values,
    not_triggered,
)
from seatrial.rules.windows import changes, in_a_row, repeated

_MAIN = ("loss", "reward/mean", "grad_norm")
"""The series whose steps are those of the run, in the order of preference."""


def _repeats(values: Values, limits: Limits) -> Marks:
    loss, reward, gradient = (values[name] for name in ("loss", "reward/mean", "grad_norm"))
    same = ~changes(loss) & ~changes(reward) & ~changes(gradient) & (gradient != 0) & (loss != 0)
    return Marks(loss, repeated(same, limits), in_a_row(same, 1))


@dataclass(frozen=True, kw_only=True)
class _OfTheSteps(Rule):
    """What rules on steps share; they give notice only, since resumed and sparse logs are normal."""

    family: str = "steps"
    needs: Sequence[str] = ("loss",)
    uses: Sequence[str] = _MAIN[1:]

    def judge(self, streams: Streams) -> Finding:
        """Look at the steps of the main series."""
        series = next((one for name in _MAIN if (one := streams.one(name)) is not None), None)
        if series is None:
            return not_triggered("log loss, reward/mean or grad_norm", self.needs)
        step, count = self.look(series)
        return Finding(
            level=Level.QUIET if step is None else Level.NOTICE,
            reason="in order" if step is None else f"{self.statement} ({count}); usually {self.meaning}",
            tags=(series.tag,),
            step=step,
            value=float(count),
            bound="0",
            num_samples=len(series),
            steps=(int(series.steps[0]), int(series.steps[-1])),
        )

    def look(self, series: Series) -> tuple[int | None, int]:
        """Return the first step that is wrong, and how many there are."""
        raise NotImplementedError


class WrittenTwice(_OfTheSteps):
    """Steps with two values that differ."""

    def look(self, series: Series) -> tuple[int | None, int]:
        """Return the first disputed step."""
        disputed = series.disputed
        if disputed is not None and len(disputed):
            return int(disputed.min()), len(disputed)
        return None, 0


class Gaps(_OfTheSteps):
    """Steps that are not logged."""

    def look(self, series: Series) -> tuple[int | None, int]:
        """Return the step before the first gap of more than `strides` usual distances."""
        distances = np.diff(series.steps)
        if len(distances) < 4:
            return None, 0
        wide = distances > self.parameters["strides"].value * max(1.0, float(np.median(distances)))
        return (int(series.steps[int(np.argmax(wide))]), int(wide.sum())) if wide.any() else (None, 0)


RULES: tuple[Rule, ...] = (
    StepRule(
        id="steps-repeat",
        family="steps",
        statement="loss, reward and gradient norm all repeat to the last digit",
        needs=("loss", "reward/mean", "grad_norm"),
        mark=_repeats,
        bound="another value in one of {in_a_row} steps",
        parameters={"in_a_row": Parameter(3, "hand-set: three figures repeat by accident hardly once")},
        meaning="a batch that is trained again, a step that is logged again, or weights that do not change",
        remedy="compare the prompts of two of these steps (`seatrial ledger`)",
    ),
    WrittenTwice(
        id="steps-twice",
        statement="steps have two values that differ",
        meaning="two processes that write to one log, or rows of micro-batches logged under one step",
        remedy="let one rank log, or average before logging",
    ),
    Gaps(
        id="steps-missing",
        statement="steps are missing in the middle",
        meaning="steps that were skipped, or a logger that lost rows",
        remedy="count optimizer steps independently of the log",
        parameters={"strides": Parameter(3, "hand-set: usual distances between two points")},
    ),
)
