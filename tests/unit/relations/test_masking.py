"""The law of masking: a plain collator obeys, and each planted fault is seen by the laws about it."""

import random
from collections.abc import Sequence

import pytest

from seatrial.relations.contracts.masking import MaskedRow, MaskingPlan
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

(RELATION,) = select(["R15.masked"])


class PlainMasks:
    """Masks ids one by one; a fault is one expression that differs."""

    ordinary_ids: Sequence[int] = tuple(range(3, 103))
    special_ids = frozenset({0, 1, 2})
    mask_id = 2
    word_size = 1

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def masked(self, plan: MaskingPlan) -> list[MaskedRow]:
        stream = random.Random(0 if self.fault == "one seed" else plan.seed)
        return [self._row((1, *row, 1), plan, stream) for row in plan.rows]

    def _row(self, ids: tuple[int, ...], plan: MaskingPlan, stream: random.Random) -> MaskedRow:
        seen, labels = list(ids), [None] * len(ids)
        for place, token in enumerate(ids):
            special = token in self.special_ids and self.fault != "special ids train"
            if special or stream.random() >= plan.share:
                continue
            kind = stream.random()
            left = 1 - plan.replaced if self.fault == "a share of the rest" else 1.0
            if kind < plan.replaced:
                seen[place] = self.mask_id
            elif kind < plan.replaced + plan.random * left:
                seen[place] = stream.choice(self.ordinary_ids)
            labels[place] = seen[place] if self.fault == "labels of what is read" else token  # type: ignore[call-overload]
        return MaskedRow(ids, tuple(seen), tuple(labels))


@pytest.mark.parametrize(
    ("fault", "laws"),
    [
        ("", []),
        ("one seed", ["seeds"]),
        ("special ids train", ["labels"]),
        ("labels of what is read", ["labels"]),
        ("a share of the rest", ["shares", "shares, half of each"]),
    ],
)
def test_a_planted_fault_is_seen(fault: str, laws: list[str]) -> None:
    """By the laws about it and by no other."""
    verdict = run_relation(RELATION, PlainMasks(fault))
    assert verdict.outcome is (Outcome.FAIL if laws else Outcome.PASS)
    assert verdict.details.get("laws_broken", []) == laws


class PlainWords(PlainMasks):
    """Masks words of two ids; a fault masks each id for itself, or all words."""

    word_size = 2

    def masked(self, plan: MaskingPlan) -> list[MaskedRow]:
        stream = random.Random(plan.seed)
        found = []
        for row in plan.rows:
            words = [stream.random() < plan.share or self.fault == "all" for _ in range(len(row) // 2 + 1)]
            own = [
                stream.random() < plan.share if self.fault == "one by one" else words[i // 2]
                for i in range(len(row))
            ]
            seen = (1, *(self.mask_id if one else token for one, token in zip(own, row, strict=True)), 1)
            labels = (None, *(token if one else None for one, token in zip(own, row, strict=True)), None)
            found.append(MaskedRow((1, *row, 1), seen, labels))
        return found


@pytest.mark.parametrize(
    ("fault", "laws"),
    [("", []), ("one by one", ["whole words"]), ("all", ["shares, all masks", "whole words", "seeds"])],
)
def test_a_fault_of_words_is_seen(fault: str, laws: list[str]) -> None:
    """By the laws about it and by no other."""
    verdict = run_relation(RELATION, PlainWords(fault))
    assert verdict.outcome is (Outcome.FAIL if laws else Outcome.PASS)
    assert verdict.details.get("laws_broken", []) == laws
