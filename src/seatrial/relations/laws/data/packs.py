"""R4 of plans: packs hold every token of every row once, and no pack has more tokens than its width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.packs import Segment
from seatrial.relations.law import Measure, Relation

WIDTH = 24
"""Not a power of two, and not a multiple of most lengths."""


Trap = Literal["unequal", "more than half", "as wide", "beyond"]


@dataclass(frozen=True, kw_only=True)
class PackCase(Case):
    """Lengths of rows, in tokens, and the width of a pack."""

    lengths: tuple[int, ...]
    width: int
    seed: int

    def smaller(self) -> Iterator[PackCase]:
        """Yield plans of fewer rows."""
        half = len(self.lengths) // 2
        if half:
            yield replace(self, lengths=self.lengths[:half])
            yield replace(self, lengths=self.lengths[half:])
        for drop in range(len(self.lengths) if half else 0):
            yield replace(self, lengths=self.lengths[:drop] + self.lengths[drop + 1 :])


def _packs(stack: Any, seed: int, tidy: bool, trap: Trap = "unequal") -> PackCase:
    """Return rows with a trap; when tidy, rows of a fourth of a pack each."""
    rng = np.random.default_rng([seed, 4])
    if tidy:
        return PackCase(lengths=(WIDTH // 4,) * 8, width=WIDTH, seed=seed)
    ranges = {
        "unequal": (1, WIDTH),
        "more than half": (WIDTH // 2 + 1, WIDTH),
        "as wide": (1, WIDTH // 2),
        "beyond": (1, WIDTH),
    }
    low, high = ranges[trap]
    lengths = [int(length) for length in rng.integers(low, high, size=11)]
    if trap == "as wide":
        # Rows that fill a pack alone, and two that fill one together.
        lengths = [WIDTH, *lengths, WIDTH - lengths[0], WIDTH]
    if trap == "beyond":
        lengths[3] = WIDTH + 7
    return PackCase(lengths=tuple(lengths), width=WIDTH, seed=seed)


def _splits(stack: Any) -> str | None:
    return "rows_beyond_the_width='split'" if stack.rows_beyond_the_width == "split" else None


def _leaves_gaps(stack: Any) -> str | None:
    return None if getattr(stack, "fills_packs", False) else "fills_packs=False"


LOST = "a last pack that is dropped, an index of sorted rows taken for one of the given rows, a row at the border twice"
WIDER = "as many packs as the tokens would fill without gaps, a row that exactly fills a pack refused or overflowing"

PLAN = Relation(
    id="R4.plan",
    name="packs-hold-every-token-once",
    component="pack_plan",
    statement="Every token of every row is in one pack once, and no pack holds more than its width.",
    catalogue="SB015 SB026 SB094 SB101",
    cost="CPU, milliseconds",
    cases=_packs,
)


@PLAN.law("every token once", LOST)
@PLAN.law("every token once, rows as wide as a pack", LOST, cases=partial(_packs, trap="as wide"))
def every_token_once(stack: Any, case: PackCase) -> Measure:
    """Check that each token of each row is in the packs exactly once."""
    return _lost_or_doubled(case, stack.plan_packs(case.lengths, case.width), case.lengths)


def _lost_or_doubled(case: PackCase, packs: Sequence[Sequence[Segment]], wanted: Sequence[int]) -> Measure:
    """Count the tokens that are not held exactly once; `wanted` are the tokens of each row that are to be kept."""
    counts = [np.zeros(length, dtype=int) for length in case.lengths]
    strange = 0
    for pack in packs:
        for row, start, stop in pack:
            inside = 0 <= row < len(counts) and 0 <= start < stop <= len(counts[row])
            strange += not inside
            if inside:
                counts[row][start:stop] += 1
    right = [[1] * kept + [0] * (len(held) - kept) for held, kept in zip(counts, wanted, strict=True)]
    wrong = [row for row, held in enumerate(counts) if held.tolist() != right[row]]
    tokens = sum(int(np.abs(counts[row] - np.array(right[row])).sum()) for row in wrong)
    return Measure(
        error=int(tokens + strange),
        bound=0,
        what=f"tokens lost or doubled (rows {wrong[:5]}), and segments of no row",
    )


@PLAN.law("no pack is wider", WIDER)
@PLAN.law("no pack is wider, rows of more than half", WIDER, cases=partial(_packs, trap="more than half"))
def packs_are_within_width(stack: Any, case: PackCase) -> Measure:
    """Check that no pack has more tokens than its width."""
    packs = stack.plan_packs(case.lengths, case.width)
    sizes = [sum(stop - start for _, start, stop in pack) for pack in packs]
    return Measure(
        error=max(sizes, default=0),
        bound=case.width,
        what=f"tokens of the largest of {len(packs)} packs",
    )


@PLAN.law(
    "no two packs fit into one",
    "a pack for each row, a pack that is closed while it has space",
    excluded=_leaves_gaps,
)
@PLAN.law(
    "no two packs fit into one, rows beyond the width",
    "the last part of a row in a pack of its own",
    cases=partial(_packs, trap="beyond"),
    excluded=_leaves_gaps,
)
def packs_are_filled(stack: Any, case: PackCase) -> Measure | None:
    """Check that the tokens of any two packs are more than a pack holds."""
    if stack.rows_beyond_the_width == "refused" and max(case.lengths) > case.width:
        return None
    packs = stack.plan_packs(case.lengths, case.width)
    sizes = sorted(sum(stop - start for _, start, stop in pack) for pack in packs)
    joined = sum(sizes[:2]) if len(sizes) > 1 else case.width + 1
    return Measure(
        error=int(max(0, case.width + 1 - joined)),
        bound=0,
        what=f"tokens that a pack has left when it holds the two smallest of {len(packs)} packs, and one more",
    )


@PLAN.law("rows are whole", "packs filled to the brim with the beginning of the next row", excluded=_splits)
def rows_are_whole(stack: Any, case: PackCase) -> Measure:
    """Check that no row is split between packs."""
    packs = stack.plan_packs(case.lengths, case.width)
    parts = [row for pack in packs for row, start, stop in pack if (start, stop) != (0, case.lengths[row])]
    return Measure.count([f"row {row}" for row in parts], "segments that are not whole rows")


@PLAN.law(
    "rows beyond the width",
    "a row that is dropped silently, or the rows after it",
    cases=partial(_packs, trap="beyond"),
)
def rows_beyond_the_width(stack: Any, case: PackCase) -> Measure | None:
    """Check that a row longer than a pack is refused, cut or split as declared, and affects no other row."""
    if max(case.lengths) <= case.width:
        return None
    wanted = case.lengths
    if stack.rows_beyond_the_width == "refused":
        try:
            stack.plan_packs(case.lengths, case.width)
        except Exception:  # noqa: BLE001  a stack may refuse with any exception
            return Measure(error=0.0, bound=0, what="a row longer than a pack, refused")
        return Measure(error=1.0, bound=0, what="a row longer than a pack, which was not refused")
    if stack.rows_beyond_the_width == "cut":
        wanted = tuple(min(length, case.width) for length in case.lengths)
    return _lost_or_doubled(case, stack.plan_packs(case.lengths, case.width), wanted)
