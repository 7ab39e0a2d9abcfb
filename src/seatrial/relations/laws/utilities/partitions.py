"""R31.partitions: rows divided among parts by their lengths are all there, once, within the limits, in balance."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

PARTITIONS = relation_of(
    "partitions",
    "parts-have-each-row-once",
    "Every row is in one part, parts are within their limits, and their sums differ by at most the longest row.",
)


def _lengths(case: Numbers, count: int, longest: int = 90) -> list[int]:
    drawn: list[int] = torch.randint(1, longest, (count,), generator=case.generator()).tolist()
    return [longest // 2] * count if case.tidy else drawn


def _not_each_once(parts: Sequence[Sequence[int]], count: int) -> list[str]:
    rows = sorted(itertools.chain.from_iterable(parts))
    return [] if rows == list(range(count)) else [f"rows {rows} in place of 0 to {count - 1}"]


@PARTITIONS.law(
    "balanced parts",
    "a row lost or in two parts, parts of unequal numbers, ties in an order of no use",
    excluded=without("balanced parts"),
)
def balanced_parts_have_each_row_once(stack: Any, case: Numbers) -> Measure:
    """Check parts of equal numbers of rows and of any: each row once, in rising order, sums within the longest row."""
    wrong: list[str] = []
    for count, num_parts in ((8, 2), (12, 4), (9, 3), (4, 4), (16, 2)):
        drawn = _lengths(case, count)
        by_place = [length + 100 * (row % num_parts) for row, length in enumerate(drawn)]
        for lengths, equal in itertools.product((drawn, by_place), (True, False)):
            parts = stack.utilities["balanced parts"](list(lengths), num_parts, equal)
            place = f"{count} rows in {num_parts} parts, equal {equal}: "
            sums = [sum(lengths[row] for row in part) for part in parts]
            wrong += [place + one for one in _not_each_once(parts, count)]
            if len(parts) != num_parts or not all(parts):
                wrong.append(f"{place}{[len(part) for part in parts]} rows of parts")
            if equal and {len(part) for part in parts} != {count // num_parts}:
                wrong.append(f"{place}{[len(part) for part in parts]} rows of parts")
            if max(sums) - min(sums) > max(lengths):
                wrong.append(f"{place}sums {sums}")
            wrong += [f"{place}{part} not in order" for part in parts if list(part) != sorted(part)]
    return Measure.count(wrong, "parts that are wrong")


@PARTITIONS.law(
    "parts in the order of rows", "a row lost, parts of unequal numbers", excluded=without("greedy parts")
)
def greedy_parts_have_each_row_once(stack: Any, case: Numbers) -> Measure:
    """Check that rows in their order go to the part with the smallest sum."""
    wrong: list[str] = []
    for count, num_parts in ((8, 2), (9, 3)):
        for equal in (True, False):
            lengths = _lengths(case, count)
            parts = stack.utilities["greedy parts"](list(lengths), num_parts, equal)
            wrong += _not_each_once(parts, count)
            if equal and {len(part) for part in parts} != {count // num_parts}:
                wrong.append(f"{[len(part) for part in parts]} rows of parts")
            due: list[list[int]] = [[] for _ in range(num_parts)]
            for row in range(count):
                sums = [sum(lengths[one] for one in part) for part in due]
                order = [(len(part) if equal else 0, own) for part, own in zip(due, sums, strict=True)]
                due[order.index(min(order))].append(row)
            wrong += [] if [list(part) for part in parts] == due else [f"{parts}, {due} is right"]
    return Measure.count(wrong, "parts that are wrong")


@PARTITIONS.law(
    "micro-batches within a number of tokens",
    "more tokens than the limit, a row lost",
    excluded=without("micro-batches by tokens"),
    limited=True,
)
@PARTITIONS.law(
    "micro-batches have each row once",
    "a row lost",
    excluded=without("micro-batches by tokens"),
)
@PARTITIONS.law(
    "micro-batches of a least number and of a multiple",
    "a number of micro-batches that is not the requested multiple, a row lost",
    excluded=without("micro-batches by tokens"),
    least=(3, 5),
    divisors=(None, 2),
)
@PARTITIONS.law(
    "micro-batches that keep groups together",
    "rows of a pair in two micro-batches, a row lost",
    excluded=without("micro-batches by tokens"),
    least=(None, 3),
    divisors=(None, 2),
    groups=(2, 3),
)
def micro_batches_are_within_limits(
    stack: Any,
    case: Numbers,
    least: Sequence[int | None] = (None,),
    divisors: Sequence[int | None] = (None,),
    groups: Sequence[int] = (1,),
    limited: bool = False,
) -> Measure:
    """Check each combination of the smallest number, its divisor, groups that stay together and balance."""
    wrong: list[str] = []
    count = 12
    lengths = _lengths(case, count, 20)
    limit = 60
    for number, divisor, group, balanced in itertools.product(least, divisors, groups, (True, False)):
        arguments = (list(lengths), limit, number, divisor, balanced, group)
        parts = stack.utilities["micro-batches by tokens"](*arguments)
        place = f"at least {number}, a multiple of {divisor}, balance {balanced}, groups of {group}: "
        wrong += [place + one for one in _not_each_once(parts, count)]
        sums = [sum(lengths[row] for row in part) for part in parts]
        wrong += [f"{place}{own} tokens, allowed {limit}" for own in sums if limited and own > limit]
        if len(parts) < (number or 1) or len(parts) % (divisor or 1):
            wrong.append(f"{place}{len(parts)} micro-batches")
        numbers_of_groups = [[row // group for row in part] for part in parts]
        wrong += [f"{place}a group apart in {part}" for part in numbers_of_groups if _apart(part, group)]
    return Measure.count(wrong, "micro-batches that are wrong")


def _apart(groups: Sequence[int], size: int) -> bool:
    return any(groups.count(one) != size for one in set(groups))


@PARTITIONS.law(
    "parts that keep groups together",
    "rows of one prompt in two parts, parts of unequal numbers of groups",
    excluded=without("parts of groups"),
)
def groups_stay_together(stack: Any, case: Numbers) -> Measure:
    """Check that each group is in one part, and that parts have equal numbers of groups."""
    wrong: list[str] = []
    for num_groups, num_parts in ((4, 2), (6, 3), (4, 4)):
        lengths = _lengths(case, 3 * num_groups)
        groups = [f"prompt {row // 3}" for row in range(len(lengths))]
        parts = stack.utilities["parts of groups"](list(lengths), groups, num_parts)
        wrong += _not_each_once(parts, len(lengths))
        for part in parts:
            own = [row // 3 for row in part]
            if _apart(own, 3) or len(set(own)) != num_groups // num_parts:
                wrong.append(f"{num_groups} groups in {num_parts} parts: {part}")
    return Measure.count(wrong, "parts that are wrong")


def inverse_order(order: Sequence[int]) -> list[int]:
    """Return the places at which an order has each row."""
    return [list(order).index(row) for row in range(len(order))]


def imbalance(lengths: Sequence[int], parts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return extremes of sums of rows in succession, and of the parts, and the mean of parts."""
    size = len(lengths) // len(parts)
    before = [sum(lengths[start : start + size]) for start in range(0, len(lengths), size)]
    after = [sum(lengths[row] for row in part) for part in parts]
    return {
        "min": float(min(before)),
        "max": float(max(before)),
        "minmax_diff": float(max(before) - min(before)),
        "balanced_min": float(min(after)),
        "balanced_max": float(max(after)),
        "mean": sum(lengths) / len(parts),
    }


def first_fit(lengths: Sequence[int], limit: int) -> int:
    """Return the number of micro-batches if each row goes to the first that can take it."""
    sums: list[int] = []
    for length in lengths:
        place = next((place for place, own in enumerate(sums) if own + length <= limit), None)
        if place is None:
            sums.append(length)
        else:
            sums[place] += length
    return len(sums)


def _orders(case: Numbers) -> list[Arguments]:
    return [(torch.randperm(7, generator=case.generator()).tolist(),), ([0],), ([2, 0, 1],)]


def _parts(case: Numbers) -> list[Arguments]:
    lengths = _lengths(case, 8)
    return [(lengths, [[0, 3, 5, 6], [1, 2, 4, 7]]), (lengths, [[0, 1], [2, 3], [4, 7], [5, 6]])]


PARTITION_FUNCTIONS = (
    Plain(
        name="inverse order",
        law="the inverse of an order",
        suspects="the order itself",
        cases=_orders,
        right=inverse_order,
    ),
    Plain(
        name="imbalance",
        law="measures of imbalance",
        suspects="sums before and after exchanged, a mean of rows",
        cases=_parts,
        right=imbalance,
        bound=1e-12,
    ),
    Plain(
        name="first fit",
        law="the number of micro-batches that are needed",
        suspects="a limit that is not reached, rows of the last micro-batch alone",
        cases=lambda case: (
            [(_lengths(case, 9, 40), limit) for limit in (40, 60, 200)] + [([5, 3, 7, 2, 6], 10)]
        ),
        right=first_fit,
    ),
)
add_laws(PARTITIONS, PARTITION_FUNCTIONS)
