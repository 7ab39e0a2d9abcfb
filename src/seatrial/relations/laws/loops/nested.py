"""R30.nested: nested values of many types are exchanged by their definitions, in containers that keep their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from seatrial.relations.contracts.processes import Exchange, ExchangePlan
from seatrial.relations.law import Measure, Relation
from seatrial.relations.oracles.exchanges import expected, leaves, nested, objects_of, types_of


def plan(how: Exchange, **options: Any) -> Callable[[Any, int, bool], ExchangePlan]:
    """Return a function that makes the plan with these options."""

    def made(stack: Any, seed: int, tidy: bool) -> ExchangePlan:
        return ExchangePlan(how=how, seed=seed, **options)

    return made


NESTED = Relation(
    id="R30.nested",
    name="nested-exchanges-are-exact",
    component="nested_exchanges",
    statement="Values of every type, shape and layout in nested containers are exchanged by the definition; containers "
    "keep their types.",
    cost="CPU, processes of one gloo group that are started once",
    cases=plan("gather"),
    seeded=False,
)
LOST = "memory that is not contiguous sent as it is, a value without a dimension left out, a cast of halves or truths"


@NESTED.law("gather", LOST)
@NESTED.law("gather, three processes", LOST, cases=plan("gather", num_ranks=3))
@NESTED.law("sum", LOST, cases=plan("sum"))
@NESTED.law("mean", "a mean for values of one type alone", cases=plan("mean"))
@NESTED.law("mean, three processes", "a divisor of two", cases=plan("mean", num_ranks=3))
@NESTED.law("broadcast", LOST, cases=plan("broadcast"))
@NESTED.law("broadcast of the second process", "the first process for any", cases=plan("broadcast", source=1))
@NESTED.law("padding", "values of one type alone that are padded, a fill of 0", cases=plan("pad"))
@NESTED.law("concatenation", "values of one container alone", cases=plan("concatenate", num_ranks=1))
@NESTED.law(
    "cast to float32", "whole numbers or truths that become floats", cases=plan("float32", num_ranks=1)
)
def values_are_those_of_the_definition(stack: Any, case: ExchangePlan) -> Measure:
    """Compare dtype, shape and values of every place with the definition, and the types of the containers."""
    wrong = []
    own = leaves(0, scalar=case.how != "concatenate")
    types = types_of(nested(own))
    for number, found in enumerate(stack.exchanged_nested(case)):
        given = dict(found)
        if (kept := given.pop("types")) != types:
            wrong.append(f"process {number} has {kept}")
        right = expected(case, number)
        if given.keys() != right.keys():
            wrong.append(f"process {number} has the places {sorted(given)}")
        for place in sorted(given.keys() & right.keys()):
            one, other = given[place], right[place]
            if one.dtype != other.dtype or one.shape != other.shape or not torch.equal(one, other):
                wrong.append(f"process {number}, {other.dtype} of shape {list(other.shape)}: {one.tolist()}")
    return Measure.count(wrong, "values or containers that are not those of the definition")


@NESTED.law("gathered objects", "objects of one process, in another order", cases=plan("gather objects"))
@NESTED.law("objects of the first process", "a list of its own", cases=plan("broadcast objects"))
@NESTED.law(
    "objects of the second process", "the first process for any", cases=plan("broadcast objects", source=1)
)
def objects_are_those_of_the_definition(stack: Any, case: ExchangePlan) -> Measure:
    """Compare objects with those of all processes in their order, or of the one that sends."""
    ranks = [objects_of(rank) for rank in range(case.num_ranks)]
    due = ranks[case.source] if case.how == "broadcast objects" else [one for own in ranks for one in own]
    wrong = [
        f"process {number}: {found['objects']}"
        for number, found in enumerate(stack.exchanged_nested(case))
        if found["objects"] != repr(due)
    ]
    return Measure.count(wrong, "processes with other objects")
