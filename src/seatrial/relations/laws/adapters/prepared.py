"""R29.prepared: an adapter that starts from data starts from the tokens that count, and from no others."""

from __future__ import annotations

from typing import Any

from seatrial.relations.contracts.adapter_routes import LeftOut
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.adapters.inputs import AdapterCase, adapter_case
from seatrial.relations.tensors import largest_difference

PREPARED = Relation(
    id="R29.prepared",
    name="start-is-computed-from-the-tokens-that-count",
    component="prepared_adapters",
    statement="The start of an adapter that is computed from data depends on the tokens that count, and on no others.",
    cost="CPU, a tenth of a second",
    cases=adapter_case,
)
ROUNDING = 1e-5
"""Float32 decompositions of the same numbers."""
MASKS = "a mask that is not found in the batch, or of the other kind"


@PREPARED.law("tokens without a label", MASKS, left_out="tokens without a label")
@PREPARED.law("padding", MASKS, left_out="padding")
def left_out_tokens_change_nothing(stack: Any, case: AdapterCase, left_out: LeftOut) -> Measure:
    """Compare starts from rows that differ at their end, in tokens that are left out; no other token sees those."""
    first, second, other = (
        stack.started(seed=case.seed, rows=rows, left_out=left_out, ids=ids)
        for rows, ids in ((case.seed, 1), (case.seed, 2), (case.seed + 1, 1))
    )
    if all(largest_difference(first[name], other[name]) <= ROUNDING for name in first):
        return Measure.count(["the rows"], "what has no effect on the start")
    found = [(largest_difference(first[name], second[name]), name) for name in first]
    return Measure.largest(found, ROUNDING, f"starts with other {left_out}, relative difference, at")
