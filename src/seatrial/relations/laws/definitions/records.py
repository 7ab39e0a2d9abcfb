"""R35.records: what a part says of itself is what it did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.definitions.made import Seeded, seeded, without

ENDS: Sequence[tuple[Any, Any, set[int]]] = (
    (2, None, {2}),
    ([2, 5], None, {2, 5}),
    (2, [7, 2], {2, 7}),
    (None, 3, {3}),
    (0, None, {0}),
    (None, 0, {0}),
    (None, None, set()),
)
"""End tokens of a configuration, of its generation configuration, and those of the model."""

RECORDS = Relation(
    id="R35.records",
    name="parts-say-what-they-did",
    component="definitions",
    statement="A sync times each of its phases under the phase's own name, a layout names the processes of each "
    "dimension, and a model's end tokens are all of those that it names.",
    catalogue="SB050 SB368 SB374",
    cost="CPU, milliseconds",
    cases=seeded,
    seeded=False,
)


@RECORDS.law(
    "phases have their names",
    "two phases under one name, a phase of the receiver left out",
    excluded=without("phases"),
)
def phases_have_their_names(stack: Any, case: Seeded) -> Measure:
    """Compare the phases that a sync of whole tensors and one of changes time with the documented ones."""
    wrong = []
    for what, due, seconds in stack.definitions["phases"]():
        wrong += [f"{what}: {sorted(set(due) ^ set(seconds))}"] * (set(due) != set(seconds))
        wrong += [f"{what}: {name} takes {taken} s" for name, taken in seconds.items() if not taken > 0]
    return Measure.count(wrong, "phases that are missing, or not there")


@RECORDS.law(
    "dimensions have their processes",
    "the size of another dimension, of copies for parts",
    excluded=without("sizes"),
)
def dimensions_have_their_processes(stack: Any, case: Seeded) -> Measure:
    """Compare the sizes that a layout of unequal dimensions reports with those that it was made of."""
    wrong = [
        f"{what}: {dict(found)}, expected {dict(due)}"
        for what, due, found in stack.definitions["sizes"]()
        if dict(due) != dict(found)
    ]
    return Measure.count(wrong, "layouts that report other sizes")


@RECORDS.law(
    "end tokens are all of them",
    "the first of several, those of one file alone, id 0 taken for none",
    excluded=without("end ids"),
)
def end_tokens_are_all(stack: Any, case: Seeded) -> Measure:
    """Compare a model's end tokens with those of its configuration and of its generation configuration."""
    wrong = [
        f"{first} and {second}: {sorted(found)}"
        for first, second, due in ENDS
        if (found := set(stack.definitions["end ids"](first, second))) != due
    ]
    return Measure.count(wrong, "end tokens that are others")
