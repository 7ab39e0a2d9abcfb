"""R2 of where ranks are: whatever starts them, and on whichever node, they make the same run, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.records.evidence import same, whole
from seatrial.relations.runs import RunCase, placed, run_cases


def placement_law(name: str, placement: str, suspects: str) -> Law:
    """Return the law that a run whose ranks are started in this way is that of the stack's own way."""

    def measure(stack: Any, case: RunCase) -> Measure:
        found = placed(stack, placement, case.options, case.seed)
        own = placed(stack, stack.placements()[0], case.options, case.seed)
        first, second = whole(own.record), whole(found.record)
        wrong = [what for what in first if not same(first[what], second[what])]
        if found.placed_by != placement:
            wrong.append(f"it says that {found.placed_by!r} started its ranks")
        return Measure.count(wrong, f"what a run of two ranks by {placement} left otherwise")

    return Law(
        name=name,
        make=run_cases(),
        measure=measure,
        excluded=_without(placement),
        seeded=False,
        suspects=suspects,
    )


def _without(placement: str) -> Callable[[Any], str | None]:
    def excluded(stack: Any) -> str | None:
        if placement in stack.placements():
            return None
        why = getattr(stack, "absent_placements", {}).get(placement)
        return f"placements has no {placement}" + (f": {why}" if why else "")

    return excluded


SUSPECTS = (
    "a share of the rows or a random stream by another number than the rank's, a word that does not reach it"
)

RELATIONS = (
    Relation(
        id="R2.placement",
        name="placement-changes-nothing",
        component="placements",
        statement="Rows, gradients, weights and metrics of two ranks are the same, whatever starts them.",
        catalogue=("SB020", "SB055", "SB056", "SB188", "SB325", "SB375"),
        cost="CPU, a minute: a run of two processes for each placement, and a Ray cluster",
        laws=(
            placement_law("ranks that torchrun starts", "torchrun", SUSPECTS),
            placement_law("ranks in Ray actors", "ray", SUSPECTS),
        ),
    ),
)
