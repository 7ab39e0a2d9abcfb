"""Weight versions between sampling and training, in asynchronous runs."""

from __future__ import annotations

from collections.abc import Callable

from seatrial.rules.rule import Limits, Marks, Parameter, StepRule, Values
from seatrial.rules.windows import early_median, held


def _mark(name: str) -> Callable[[Values, Limits], Marks]:
    def mark(values: Values, limits: Limits) -> Marks:
        age = values[name]
        level = early_median(age, int(limits["early"]))
        least, of_last = int(limits["held"]), int(limits["of_last"])
        return Marks(
            age,
            held(age > level + limits["versions"], least, of_last),
            held(age > level + limits["notice"], least, of_last),
        )

    return mark


_HAND = "hand-set"
RULES = tuple(
    StepRule(
        id=f"staleness-{kind}-grows",
        family="staleness",
        statement="samples are trained on ever more versions after they were drawn",
        needs=(f"staleness/{kind}",),
        mark=_mark(f"staleness/{kind}"),
        bound="<= {versions} versions above the median of the first {early} points (notice {notice})",
        parameters={
            "early": Parameter(10, _HAND),
            "versions": Parameter(8, _HAND),
            "notice": Parameter(3, _HAND),
            "held": Parameter(8, _HAND),
            "of_last": Parameter(10, _HAND),
        },
        meaning="a filter of stale samples that is off, generation that cannot keep up, or versions that are counted "
        "in other units",
        remedy="look at the window that the configuration allows, and at the queue between sampler and trainer",
        min_points=10,
    )
    for kind in ("mean", "max")
)
