"""The laws of preference pairs: plain rows obey, and each planted fault is seen by the law about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

import pytest

from seatrial.relations.cases.examples import Example
from seatrial.relations.contracts.conversations import PairRow, TokenRow
from seatrial.relations.engine import run_relation
from seatrial.relations.laws.data.pairs import oracle
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

PAD, END = 0, 1


@dataclass
class PlainPairs:
    """Rows padded into one batch and read back; a fault is one line that differs."""

    fault: str = ""
    pad_id: int = PAD
    pair_keeps: Literal["start", "end"] | None = "start"
    ordinary_ids: Sequence[int] = tuple(range(2, 40))
    eos_id: int = END

    def pair_rows(self, examples: Sequence[Example], *, max_length: int | None) -> Sequence[PairRow]:
        """Make both rows of each pair, and cut the columns that none needs."""
        rows = [
            [
                self._row(one, completion, max_length)
                for completion in (one.completion_ids, one.rejected_ids or ())
            ]
            for one in examples
        ]
        if self.fault == "last column trimmed":
            longest = max(len(row.ids) for pair in rows for row in pair)
            rows = [
                [TokenRow(row.ids[: longest - 1], row.counted[: longest - 1]) for row in pair]
                for pair in rows
            ]
        if self.fault == "exchanged":
            rows = [pair[::-1] for pair in rows]
        return [PairRow(*pair) for pair in rows]

    def _row(self, one: Example, completion: Sequence[int], max_length: int | None) -> TokenRow:
        ids = [*one.prompt_ids, *completion]
        start = len(one.prompt_ids)
        if self.fault == "prompt is what both share":
            other = [*one.prompt_ids, *(one.rejected_ids or ())]
            both = zip([*one.prompt_ids, *one.completion_ids], other, strict=False)
            start = len(list(takewhile(lambda pair: pair[0] == pair[1], both)))
        if self.fault == "prompt by search":
            width = len(one.prompt_ids)
            start = (
                max(place for place in range(len(ids)) if ids[place : place + width] == list(one.prompt_ids))
                + width
            )
        if self.fault == "span off by one":
            start -= 1
        counted = [int(place >= start) for place in range(len(ids))]
        if self.fault == "end by pad id":
            counted = [int(on and token != self.pad_id) for token, on in zip(ids, counted, strict=True)]
        if max_length is None or self.pair_keeps is None:
            return TokenRow(ids, counted)
        if self.fault == "completion cut alone":
            return TokenRow(ids[: start + max_length // 2], counted[: start + max_length // 2])
        from_start = (self.pair_keeps == "start") != (self.fault == "other side cut")
        kept = slice(None, max_length) if from_start else slice(-max_length, None)
        return TokenRow(ids[kept], counted[kept])


def broken(stack: PlainPairs, *, tidy: bool = False) -> list[str]:
    """Return the laws that rows break."""
    (relation,) = select(["R15.pairs"])
    verdict = run_relation(relation, stack, seeds=[0], tidy=tidy)
    assert verdict.outcome in (Outcome.PASS, Outcome.FAIL), verdict
    return list(verdict.details.get("laws_broken", []))


@pytest.mark.parametrize(
    "stack", [PlainPairs(), PlainPairs(pad_id=END, pair_keeps="end"), PlainPairs(pair_keeps=None)]
)
def test_plain_pairs_obey(stack: PlainPairs) -> None:
    """Cut from either side, or nowhere."""
    assert broken(stack) == []


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("exchanged", "ids"),
        ("span off by one", "counted tokens"),
        ("prompt is what both share", "counted tokens, completions that begin alike"),
        ("prompt is what both share", "counted tokens, a completion that is the start of the other"),
        ("prompt by search", "counted tokens, a completion that repeats the prompt"),
        ("last column trimmed", "other pairs change nothing"),
        ("other side cut", "a long completion is cut"),
        ("completion cut alone", "a long prompt is cut"),
    ],
)
def test_a_planted_fault_is_seen(fault: str, law: str) -> None:
    """By the law about it."""
    assert law in broken(PlainPairs(fault))


def test_an_end_that_is_padding_is_seen() -> None:
    """Where both are one id."""
    assert "end tokens count" in broken(PlainPairs("end by pad id", pad_id=END))
    assert broken(PlainPairs("end by pad id")) == []


@pytest.mark.parametrize("fault", ["prompt by search", "other side cut", "completion cut alone"])
def test_tidy_pairs_hide_it(fault: str) -> None:
    """Short ones of one length, whose completions share nothing."""
    assert broken(PlainPairs(fault), tidy=True) == []


def test_the_oracle_of_a_pair_in_full() -> None:
    """The end of a longer row is kept with its own marks."""
    one = Example(prompt_ids=(5, 6), completion_ids=(7, END), rejected_ids=(8, 9, END))
    assert oracle(one, max_length=4, keeps="end") == PairRow(
        TokenRow([5, 6, 7, END], [0, 0, 1, 1]), TokenRow([6, 8, 9, END], [0, 1, 1, 1])
    )
