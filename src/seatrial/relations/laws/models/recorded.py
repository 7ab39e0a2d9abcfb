"""R5.recorded: logits of a model with given weights are those that were recorded of other releases.

A scale, a norm or a weight of experts that is wrong in every form alike changes no comparison of one form with another.
So does an option that is read from the wrong place, and a value that a configuration fills in.
The record does not say that its numbers are right: it says that releases that were compared had the same.
Where it was made of the line of the installed release, a call that it has numbers for must not raise either.
"""

from __future__ import annotations

import math
from typing import Any

from seatrial.relations.cases.case import AsItIs, as_it_is
from seatrial.relations.law import Measure, Relation
from seatrial.relations.not_served import Absent, NotServed

BOUND = 5e-3
"""Relative to the scale that a record ends with: float32 through a few layers with enlarged weights."""

RECORDED = Relation(
    id="R5.recorded",
    name="logits-are-those-on-record",
    component="recorded_model",
    statement="A model with given weights has the outputs that were recorded of other releases, with any option.",
    cost="CPU, half a second a family",
    cases=as_it_is,
    seeded=False,
)


@RECORDED.law("logits", "a scale, a norm, an order or a default that another release had otherwise")
def logits_are_on_record(stack: Any, case: AsItIs) -> Measure:
    """Compare projections of logits, losses, gradients and other outputs with the recorded ones."""
    found = []
    for name, right in stack.recorded.items():
        part = name or "no option"
        try:
            given = stack.projections(name)
        except Absent:
            continue
        except NotServed as refusal:
            if getattr(stack, "is_of_the_line", False):
                found.append((part, math.inf, f"{part}: on record, and now: {refusal}"))
            continue
        if len(given) != len(right):
            found.append((part, math.inf, f"{part}: {len(given)} numbers, {len(right)} on record"))
            continue
        error = max(abs(one - due) for one, due in zip(given, right, strict=True)) / max(right[-1], 1e-9)
        found.append((part, error, part))
    if not found:
        raise NotServed("no option on record is served")
    return Measure.largest_of_each(found, BOUND, "projections of outputs against the record, relative")
