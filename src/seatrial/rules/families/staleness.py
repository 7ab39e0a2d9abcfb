"""Weight versions between sampling and training, in asynchronous runs."""

from __future__ import annotations

from collections.abc import Callable

from seatrial.rules.rule import HAND_SET, Limits, Marks, StepRule, Values, figures
from seatrial.rules.windows import early_median, lasting


def _mark(name: str) -> Callable[[Values, Limits], Marks]:
    def mark(values: Values, limits: Limits) -> Marks:
        age = values[name]
        level = early_median(age, int(limits["early"]))
        return Marks(
            age,
            lasting(age > level + limits["versions"], limits),
            lasting(age > level + limits["notice"], limits),
        )

    return mark


RULES = tuple(
    StepRule(
        id=f"staleness-{kind}-grows",
        family="staleness",
        statement="samples are trained on ever more versions after they were drawn",
        needs=(f"staleness/{kind}",),
        mark=_mark(f"staleness/{kind}"),
        bound="<= {versions} versions above the median of the first {early} points (notice {notice})",
        parameters=figures(HAND_SET, early=10, versions=8, notice=3, held=8, of_last=10),
        meaning="a filter of stale samples that is off, generation that cannot keep up, or versions that are counted "
        "in other units",
        remedy="look at the window that the configuration allows, and at the queue between sampler and trainer",
        min_points=10,
    )
    for kind in ("mean", "max")
)
