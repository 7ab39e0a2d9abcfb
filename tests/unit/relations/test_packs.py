"""The laws of plans of packs: plain packers obey as they declare, and planted faults are seen by the law about them."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from seatrial.relations.contracts.packs import Segment
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

(RELATION,) = select(["R4.plan"])


@dataclass
class NextFit:
    """Rows in their order, whole where they fit; a fault is one line that differs."""

    rows_beyond_the_width: str = "refused"
    fault: str = ""
    fills_packs: bool = False

    def plan_packs(self, lengths: Sequence[int], width: int) -> list[list[Segment]]:
        """Open a pack when the next row does not fit the last one."""
        packs: list[list[Segment]] = [[]]
        free = width
        for row, length in enumerate(lengths):
            if length > width and self.rows_beyond_the_width == "refused":
                if self.fault == "long rows left out":
                    continue
                raise ValueError(f"row {row} of {length} tokens does not fit")
            kept = min(length, width) if self.rows_beyond_the_width == "cut" else length
            start = 0
            while start < kept:
                room = width + 1 if self.fault == "wider" and len(packs[-1]) > 1 else free
                whole = kept - start <= room
                if not whole and (self.rows_beyond_the_width != "split" or not free):
                    packs.append([])
                    free = width
                stop = min(kept, start + free) if self.fault != "wider" else kept
                packs[-1].append(Segment(row, start, stop))
                free -= stop - start
                start = stop
        return packs[:-1] if self.fault == "last pack dropped" else packs


def broken(stack: NextFit, *, tidy: bool = False) -> list[str]:
    """Return the laws that a packer breaks."""
    verdict = run_relation(RELATION, stack, tidy=tidy)
    return list(verdict.details.get("laws_broken", []))


@pytest.mark.parametrize("beyond", ["refused", "cut", "split"])
def test_a_plain_packer_obeys_as_it_declares(beyond: str) -> None:
    """What is excluded by its declaration is named."""
    verdict = run_relation(RELATION, NextFit(beyond))
    assert verdict.outcome is Outcome.PASS
    assert "no two packs fit into one" in verdict.details["laws_not_exercised"]
    assert ("rows are whole" in verdict.details["laws_not_exercised"]) == (beyond == "split")


@pytest.mark.parametrize(
    ("stack", "law"),
    [
        (NextFit(fault="last pack dropped"), "every token once"),
        (NextFit(fault="wider"), "no pack is wider"),
        (NextFit(fault="long rows left out"), "rows beyond the width"),
        (NextFit(fills_packs=True), "no two packs fit into one"),
    ],
)
def test_a_planted_fault_is_seen(stack: NextFit, law: str) -> None:
    """By the law about it."""
    assert law in broken(stack)


def test_packs_that_are_filled_in_order_have_no_space_for_another() -> None:
    """Where rows may be split."""
    assert broken(NextFit("split", fills_packs=True)) == []


def test_a_packer_that_cuts_and_says_that_it_splits_is_seen() -> None:
    """The declaration is held."""

    class Cuts(NextFit):
        def plan_packs(self, lengths: Sequence[int], width: int) -> list[list[Segment]]:
            """Cut."""
            return NextFit("cut").plan_packs(lengths, width)

    assert broken(Cuts("split")) == ["rows beyond the width"]


def test_tidy_rows_hide_wide_packs_and_long_rows() -> None:
    """A fourth of a pack each."""
    assert broken(NextFit(fault="long rows left out"), tidy=True) == []
