"""R33.compared: what is logged of an interval of several steps is of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from seatrial.relations.contracts.compared import ComparedPlan
from seatrial.relations.law import Measure
from seatrial.relations.laws.trainer.compared import COMPARED, plan
from seatrial.relations.measures.compared import close
from seatrial.relations.not_served import NotServed
from seatrial.relations.runs import compared_run

OF_THE_LAST = re.compile(r"^grad_norm$|^num_|total|^lr$|^episode$")
"""Scalars that are documented as the last step's, and totals."""
EXTREMES = re.compile(r"(?:^|[/_])(?:min|max)(?:$|[/_])")


@COMPARED.law(
    "logged scalars of two steps",
    "the last step alone, a sum, values that are left over from the interval before",
    cases=plan(num_steps=4, num_micro_batches=2),
    excluded=lambda stack: None if stack.compare_spec.logs_means else "compare_spec.logs_means=False",
)
def logged_scalars_of_two_steps(stack: Any, case: ComparedPlan) -> Measure:
    """Compare each scalar of an interval of two steps with those of both steps, logged one by one."""
    wrong: dict[str, list[str]] = {}
    effective = stack.compare_spec.effective  # which may log more
    own = (replace(case, variation=name, num_steps=2, num_micro_batches=1) for name in effective)
    for one in (case, *own):
        for name, place in _of_intervals(stack, one):
            wrong.setdefault(name, []).extend([f"{one.variation} {place}".strip()] if place else [])
    return Measure.count_of_each(wrong, "scalars that are not of both steps")


def _of_intervals(stack: Any, case: ComparedPlan) -> Iterator[tuple[str, str]]:
    """Yield each scalar of an interval, and how it is not of both steps; nothing where it is."""
    steps = compared_run(stack, case).steps
    found = compared_run(stack, replace(case, logged_every=2)).steps
    if not any(step.logged for step in steps):
        raise NotServed("nothing is logged under a step's number")
    for last in range(1, len(steps), 2):
        one, other, logged = steps[last - 1].logged, steps[last].logged, found[last].logged
        for name in sorted(one.keys() & other.keys()):
            if name not in logged:
                yield name, f"{name} of step {last + 1} is not logged"
                continue
            right = any(close(logged[name], value) for value in _of_both(name, one[name], other[name]))
            place = f"{name} of step {last + 1}: {logged[name]:.5g}, {one[name]:.5g} and {other[name]:.5g}"
            yield name, "" if right else place


def _of_both(name: str, one: float, other: float) -> Sequence[float]:
    """Return what a scalar of two steps may be: their mean, an extremum by its name, or the last of a total."""
    if OF_THE_LAST.search(name):
        return (other,)
    if EXTREMES.search(name):
        return (max(one, other), min(one, other), (one + other) / 2)
    return ((one + other) / 2,)
