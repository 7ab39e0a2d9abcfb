"""R30.collectives: gathers, reductions and paddings between processes are those of their definitions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation


@dataclass(frozen=True, kw_only=True)
class Values(Case):
    """Values of each process; as many on each where `equal`."""

    equal: tuple[tuple[float, ...], ...]
    unequal: tuple[tuple[float, ...], ...]


def _values(stack: Any, seed: int, tidy: bool) -> Values:
    stream = random.Random(seed)
    lengths = [3, 3] if tidy else [2, 5]

    def drawn(length: int) -> tuple[float, ...]:
        return tuple(stream.randint(-8, 8) / 4 for _ in range(length))

    return Values(equal=tuple(drawn(3) for _ in lengths), unequal=tuple(drawn(length) for length in lengths))


COLLECTIVES = Relation(
    id="R30.collectives",
    name="exchanges-are-exact",
    component="collectives",
    statement="Gathers have the values of all processes in their order, reductions are exact, padding keeps all.",
    cost="CPU, processes of one gloo group that are started once",
    cases=_values,
)


@COLLECTIVES.law("gather", "processes joined in another order, the own values twice")
def gather_is_in_order(stack: Any, case: Values) -> Measure:
    """Compare what each process gathers with the values of all."""
    right = [value for rank in case.equal for value in rank]
    wrong = [
        f"process {number}: {list(found)}"
        for number, found in enumerate(stack.gathered(case.equal))
        if list(found) != right
    ]
    return Measure.count(wrong, f"gathers that are not {right}")


@COLLECTIVES.law("sum", "a mean for a sum, the own values left out", how="sum")
@COLLECTIVES.law("mean", "a division that is done twice, or by each process's own count", how="mean")
def reduction_is_exact(stack: Any, case: Values, how: Literal["sum", "mean"]) -> Measure:
    """Compare a reduction with its definition."""
    divisor = len(case.equal) if how == "mean" else 1
    right = [sum(values) / divisor for values in zip(*case.equal, strict=True)]
    found = [
        (max(abs(a - b) for a, b in zip(one, right, strict=True)), f"process {number}")
        for number, one in enumerate(stack.reduced(case.equal, how))
    ]
    return Measure.largest(found, 1e-6, f"{how} of all processes against its definition")


@COLLECTIVES.law("padding at the end", "values cut to the shortest, a fill of another value", first=False)
@COLLECTIVES.law("padding at the beginning", "padding at the end, values moved", first=True)
def padding_keeps_values(stack: Any, case: Values, first: bool) -> Measure:
    """Compare padded values with their own, filled up to the longest of all processes."""
    length = max(len(values) for values in case.unequal)
    wrong = []
    for number, (found, own) in enumerate(
        zip(stack.padded(case.unequal, fill=-99.0, first=first), case.unequal, strict=True)
    ):
        fill = [-99.0] * (length - len(own))
        right = [*fill, *own] if first else [*own, *fill]
        if list(found) != right:
            wrong.append(f"process {number}: {list(found)}, due {right}")
    return Measure.count(wrong, "values that are padded otherwise")
