"""R2.placement: ranks make the same run, bit for bit, with any launcher and on any node."""

from __future__ import annotations

from typing import Any

from seatrial.relations.law import Excluded, Measure, Relation
from seatrial.relations.records.evidence import differences
from seatrial.relations.runs import RunCase, placed, run_cases

PLACEMENT = Relation(
    id="R2.placement",
    name="placement-changes-nothing",
    component="placements",
    statement="Rows, gradients, weights and metrics of two ranks are the same with any launcher.",
    catalogue="SB020 SB055 SB056 SB188 SB325 SB375",
    cost="CPU, a minute: a run of two processes for each placement, and a Ray cluster",
    cases=run_cases(),
    seeded=False,
)
SUSPECTS = "a share of the rows or a random stream by another number than the rank's, an option that does not reach it"


def _needs(placement: str) -> Excluded:
    def excluded(stack: Any) -> str | None:
        if placement in stack.placements():
            return None
        why = getattr(stack, "absent_placements", {}).get(placement)
        return f"placements has no {placement}" + (f": {why}" if why else "")

    return excluded


@PLACEMENT.law("ranks that torchrun starts", SUSPECTS, excluded=_needs("torchrun"), placement="torchrun")
@PLACEMENT.law("ranks in Ray actors", SUSPECTS, excluded=_needs("ray"), placement="ray")
def placement_changes_nothing(stack: Any, case: RunCase, placement: str) -> Measure:
    """Compare a run whose ranks are started in one way with that of the stack's first way."""
    found = placed(stack, placement, case.options, case.seed)
    own = placed(stack, stack.placements()[0], case.options, case.seed)
    wrong = differences(own.record, found.record)
    if found.placed_by != placement:
        wrong.append(f"the run reports that {found.placed_by!r} started its ranks")
    return Measure.count(wrong, f"what differs in a run of two ranks by {placement}")
