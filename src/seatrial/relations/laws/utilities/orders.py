"""R31.orders: an order of repeated rows has each as often, and where, as its arguments say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.utilities.numbers import Numbers, numbers, without

PLANS = ((7, 2, 3, 4), (6, 1, 2, 1), (5, 3, 5, 2), (9, 2, 1, 1), (2, 2, 3, 1))
"""Rows, copies of each in succession, different rows of a batch, and how often a batch is repeated."""

ORDERS = Relation(
    id="R31.orders",
    name="repeated-rows-come-as-configured",
    component="utilities",
    statement="An order of repeated rows has whole batches alone, each row's copies in succession, batches repeated.",
    cost="CPU, milliseconds",
    cases=numbers,
)


def _repeated(rows: Sequence[int], copies: int, batch: int, repeats: int) -> list[int]:
    """Return the order of rows by its definition."""
    whole = [rows[start : start + batch] for start in range(0, len(rows) // batch * batch, batch)]
    return [row for part in whole for _ in range(repeats) for row in part for _ in range(copies)]


@ORDERS.law(
    "not shuffled",
    "a last batch that is not whole, batches interleaved, copies apart",
    excluded=without("repeated order"),
)
def order_is_that_of_its_definition(stack: Any, case: Numbers) -> Measure:
    """Compare orders that are not shuffled with the definition, in two epochs."""
    wrong = []
    for plan in PLANS:
        right = _repeated(range(plan[0]), *plan[1:])
        for given in stack.utilities["repeated order"](*plan, False, case.seed, 2):
            wrong += [] if list(given) == right else [f"{plan}: {list(given)}"]
    return Measure.count(wrong, "orders that are not those of the definition")


@ORDERS.law(
    "shuffled",
    "an order that the seed does not change, the same order in each epoch, rows drawn twice",
    excluded=without("repeated order"),
)
def shuffled_order_is_one_of_its_rows(stack: Any, case: Numbers) -> Measure:
    """Check the form of a shuffled order, that its seed repeats it, and that epochs and seeds differ."""
    wrong = []
    for num_rows, copies, batch, repeats in ((24, 2, 4, 3), (25, 1, 5, 1)):
        plan = (num_rows, copies, batch, repeats, True)
        epochs = [list(one) for one in stack.utilities["repeated order"](*plan, case.seed, 2)]
        for epoch in epochs:
            rows = list(dict.fromkeys(epoch))
            if len(rows) != num_rows // batch * batch or epoch != _repeated(rows, copies, batch, repeats):
                wrong.append(f"{plan}: {epoch}")
        again = [list(one) for one in stack.utilities["repeated order"](*plan, case.seed, 2)]
        (other,) = stack.utilities["repeated order"](*plan, case.seed + 1, 1)
        wrong += [] if again == epochs else [f"{plan}: another order with the same seed"]
        wrong += [] if epochs[0] != epochs[1] else [f"{plan}: one order in both epochs"]
        wrong += [] if list(other) != epochs[0] else [f"{plan}: one order with two seeds"]
    return Measure.count(wrong, "shuffled orders")


@ORDERS.law(
    "stream",
    "a last batch that is not whole, records that are one object",
    excluded=without("repeated stream"),
)
def stream_has_the_order(stack: Any, case: Numbers) -> Measure:
    """Compare the records of a stream with the definition of the order, and check that no copy is another's object."""
    wrong = []
    for num_rows, copies, batch, repeats in PLANS:
        records = [{"place": row, "items": [row]} for row in range(num_rows)]
        given = list(stack.utilities["repeated stream"](records, copies, batch, repeats))
        places = [one["place"] for one in given]
        if places != _repeated(range(num_rows), copies, batch, repeats):
            wrong.append(f"{(num_rows, copies, batch, repeats)}: {places}")
        if len({id(one["items"]) for one in given}) != len(given):
            wrong.append("copies that share a list")
    return Measure.count(wrong, "streams in another order")
