"""R30.split: rows that are split between processes are in one part each, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from seatrial.relations.contracts.processes import SplitPlan
from seatrial.relations.law import Measure, Relation


def plan(**options: Any) -> Callable[[Any, int, bool], SplitPlan]:
    """Return a function that makes the plan with these options; when tidy, parts have one length."""

    def made(stack: Any, seed: int, tidy: bool) -> SplitPlan:
        given = SplitPlan(seed=seed, **options)
        return replace(given, num_rows=2 * given.num_ranks) if tidy else given

    return made


SPLIT = Relation(
    id="R30.split",
    name="split-rows-are-in-one-part",
    component="process_splits",
    statement="Each row of a container is in the part of one process, in their order; parts differ by one row at "
    "most, or are filled up with the last row; the container stays.",
    cost="CPU, processes of one gloo group that are started once",
    cases=plan(),
)


def parts_of(case: SplitPlan) -> list[list[int]]:
    """Return the rows that are due on each process."""
    shortest, more = divmod(case.num_rows, case.num_ranks)
    longest = shortest + bool(more)
    parts, at = [], 0
    for rank in range(case.num_ranks):
        length = shortest + (rank < more)
        fill = [case.num_rows - 1] * (longest - length) if case.padded else []
        parts.append([*range(at, at + length), *fill])
        at += length
    return parts


LOST = "a last row that is repeated or left out, parts of unequal processes that overlap"


@SPLIT.law("lists", LOST)
@SPLIT.law("tuples", LOST, cases=plan(kind="tuple"))
@SPLIT.law("tensors", LOST, cases=plan(kind="tensor"))
@SPLIT.law("tensors of vectors", LOST, cases=plan(kind="tensor of vectors"))
@SPLIT.law(
    "dictionaries of lists", f"{LOST}, keys split at other places", cases=plan(kind="dictionary of lists")
)
@SPLIT.law(
    "dictionaries of tensors", f"{LOST}, keys split at other places", cases=plan(kind="dictionary of tensors")
)
@SPLIT.law("data sets", LOST, cases=plan(kind="data set"))
@SPLIT.law("lists, three processes", LOST, cases=plan(num_ranks=3, num_rows=8))
@SPLIT.law("tensors, three processes", LOST, cases=plan(num_ranks=3, num_rows=8, kind="tensor"))
@SPLIT.law("data sets, three processes", LOST, cases=plan(num_ranks=3, num_rows=8, kind="data set"))
@SPLIT.law("lists, rows that divide evenly", LOST, cases=plan(num_rows=6))
@SPLIT.law("lists, fewer rows than processes", LOST, cases=plan(num_rows=1))
@SPLIT.law("data sets, fewer rows than processes", LOST, cases=plan(num_rows=1, kind="data set"))
@SPLIT.law("tensors, fewer rows than processes", LOST, cases=plan(num_rows=1, kind="tensor"))
@SPLIT.law("lists, one process", LOST, cases=plan(num_ranks=1))
def each_row_is_in_one_part(stack: Any, case: SplitPlan) -> Measure:
    """Compare the parts of all processes with the rows that are due."""
    wrong = [
        f"process {number}: {list(part.rows)}, due {right}"
        for number, (part, right) in enumerate(zip(stack.split(case), parts_of(case), strict=True))
        if list(part.rows) != right
    ]
    return Measure.count(wrong, "processes with other rows")


FILLED = "parts of unequal lengths, a filling row that is not the last one, a fill of zeros"
SPLIT.law("lists, filled", FILLED, cases=plan(padded=True))(each_row_is_in_one_part)
SPLIT.law("lists, rows that divide evenly, filled", FILLED, cases=plan(padded=True, num_rows=6))(
    each_row_is_in_one_part
)
SPLIT.law("tuples, filled", FILLED, cases=plan(padded=True, kind="tuple"))(each_row_is_in_one_part)
SPLIT.law("tensors, filled", FILLED, cases=plan(padded=True, kind="tensor"))(each_row_is_in_one_part)
SPLIT.law("tensors of vectors, filled", FILLED, cases=plan(padded=True, kind="tensor of vectors"))(
    each_row_is_in_one_part
)
SPLIT.law("dictionaries of tensors, filled", FILLED, cases=plan(padded=True, kind="dictionary of tensors"))(
    each_row_is_in_one_part
)
SPLIT.law("data sets, filled", FILLED, cases=plan(padded=True, kind="data set"))(each_row_is_in_one_part)
SPLIT.law("lists, three processes, filled", FILLED, cases=plan(padded=True, num_ranks=3, num_rows=7))(
    each_row_is_in_one_part
)
SPLIT.law(
    "lists, fewer rows than processes, filled", FILLED, cases=plan(padded=True, num_ranks=3, num_rows=1)
)(each_row_is_in_one_part)
SPLIT.law(
    "data sets, three processes, filled",
    FILLED,
    cases=plan(padded=True, num_ranks=3, num_rows=7, kind="data set"),
)(each_row_is_in_one_part)

IN_PLACE = "a container whose values are replaced by the part, or grow by the fill"


@SPLIT.law("lists stay", IN_PLACE, cases=plan(padded=True))
@SPLIT.law("dictionaries of lists stay", IN_PLACE, cases=plan(kind="dictionary of lists"))
@SPLIT.law(
    "dictionaries of lists, filled, stay", IN_PLACE, cases=plan(kind="dictionary of lists", padded=True)
)
@SPLIT.law("dictionaries of tensors stay", IN_PLACE, cases=plan(kind="dictionary of tensors"))
def container_stays(stack: Any, case: SplitPlan) -> Measure:
    """Check that the container has all rows after the block, and that a second split gives the same part."""
    right = list(range(case.num_rows))
    first, second = stack.split(case), stack.split(replace(case, twice=True))
    wrong = [
        f"process {number}: {list(part.given)} is left of {right}"
        for number, part in enumerate(first)
        if list(part.given) != right
    ]
    wrong += [
        f"process {number}: {list(again.rows)} of a second split, {list(part.rows)} of the first"
        for number, (part, again) in enumerate(zip(first, second, strict=True))
        if again.rows != part.rows
    ]
    return Measure.count(wrong, "containers that a split changes")
