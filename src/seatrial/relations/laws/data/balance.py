"""R4.balance: rows shared out by length are each in one part, and no part is much longer than another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from seatrial.relations.contracts.controllers import SharesCase
from seatrial.relations.law import Measure, Relation


def _lengths(num_rows: int, num_parts: int, equal_sizes: bool) -> Callable[[Any, int, bool], SharesCase]:
    """Return a law's `cases`: many short rows, a few long ones, and several of one length; sorted, as from a file."""

    def make(stack: Any, seed: int, tidy: bool) -> SharesCase:
        rng = np.random.default_rng([seed, 4, num_rows])
        short = [int(length) for length in rng.integers(1, 40, num_rows)]
        long = [int(length) for length in rng.integers(300, 900, num_rows // 5)]
        made = [16] * num_rows if tidy else sorted([*short[len(long) + 2 :], 17, 17, *long])
        return SharesCase(lengths=tuple(made), num_parts=num_parts, equal_sizes=equal_sizes)

    return make


BALANCE = Relation(
    id="R4.balance",
    name="rows-are-shared-out-evenly",
    component="length_balance",
    statement="Parts hold each row once, as many rows each if configured, and differ by at most the longest row.",
    cost="CPU, milliseconds",
    cases=_lengths(24, 4, equal_sizes=False),
)


def _parts(stack: Any, case: SharesCase) -> Sequence[Sequence[int]]:
    parts: Sequence[Sequence[int]] = stack.balanced_parts(case.lengths, case.num_parts, case.equal_sizes)
    return parts


@BALANCE.law("every row once", "rows lost or doubled where parts are joined, a part left out")
@BALANCE.law(
    "every row once, parts of equal numbers",
    "rows lost or doubled where parts are joined, a part left out",
    cases=_lengths(24, 4, equal_sizes=True),
)
@BALANCE.law(
    "every row once, as many parts as rows", "an empty part", cases=_lengths(6, 6, equal_sizes=False)
)
def every_row_once(stack: Any, case: SharesCase) -> Measure:
    """Check that there are as many parts as configured, none empty, and each row is in one."""
    parts = _parts(stack, case)
    counts = Counter(int(row) for part in parts for row in part)
    wrong = [] if len(parts) == case.num_parts else [f"{len(parts)} parts of {case.num_parts}"]
    wrong += [f"part {number} is empty" for number, part in enumerate(parts) if not len(part)]
    wrong += [f"row {row} is in {counts[row]} parts" for row in range(len(case.lengths)) if counts[row] != 1]
    wrong += [f"there is no row {row}" for row in counts if not 0 <= row < len(case.lengths)]
    return Measure.count(wrong, "rows that are not in one part")


@BALANCE.law(
    "parts of equal numbers", "sums balanced at the cost of sizes", cases=_lengths(24, 4, equal_sizes=True)
)
def parts_have_equal_numbers(stack: Any, case: SharesCase) -> Measure:
    """Check that parts have as many rows each."""
    due = len(case.lengths) // case.num_parts
    wrong = [f"{len(part)} rows for {due}" for part in _parts(stack, case) if len(part) != due]
    return Measure.count(wrong, "parts of other numbers of rows")


@BALANCE.law("parts differ by one row at most", "rows dealt out in their order, sorted rows cut into runs")
@BALANCE.law(
    "parts of equal numbers differ by one row at most",
    "rows dealt out in their order, sorted rows cut into runs",
    cases=_lengths(24, 4, equal_sizes=True),
)
def parts_are_balanced(stack: Any, case: SharesCase) -> Measure:
    """Compare the difference of the longest and the shortest part with the longest row."""
    sums = [sum(case.lengths[row] for row in part) for part in _parts(stack, case)]
    return Measure(
        error=float(max(sums) - min(sums)),
        bound=float(max(case.lengths)),
        what=f"tokens of parts {sums}, their range",
    )


def _longest_first(lengths: Sequence[int], num_parts: int, equal_sizes: bool) -> list[list[int]]:
    """Give each row, from the longest on, to the part with the smallest sum that takes more rows."""
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        free = [part for part in parts if not equal_sizes or len(part) < len(lengths) // num_parts]
        min(free, key=lambda part: sum(lengths[own] for own in part)).append(row)
    return parts


def _range(lengths: Sequence[int], parts: Sequence[Sequence[int]]) -> int:
    sums = [sum(lengths[row] for row in part) for part in parts]
    return max(sums) - min(sums)


@BALANCE.law(
    "parts as even as by the longest row first",
    "sets joined in another order, the largest with the largest",
)
@BALANCE.law(
    "parts of equal numbers as even as by the longest row first",
    "sets joined in another order, the largest with the largest",
    cases=_lengths(24, 4, equal_sizes=True),
)
def parts_are_even(stack: Any, case: SharesCase) -> Measure:
    """Compare ranges, summed over lists of few rows, with those of the simplest rule that balances.

    The differencing method of Karmarkar and Karp leaves 0.4 to 0.75 of them (240 lists of each kind).
    """
    rng = np.random.default_rng([sum(case.lengths), 4])
    own = simple = 0
    for _ in range(20):
        num_parts = int(rng.integers(2, 5))
        lengths = [int(length) for length in rng.integers(10, 1000, 4 * num_parts)]
        own += _range(lengths, stack.balanced_parts(lengths, num_parts, case.equal_sizes))
        simple += _range(lengths, _longest_first(lengths, num_parts, case.equal_sizes))
    return Measure(error=float(own), bound=float(simple), what="tokens between the parts, sum over 20 lists")
