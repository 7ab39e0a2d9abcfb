"""R15.masked: masked rows train their own ids, of the shares that are configured, and never a special one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from seatrial.relations.contracts.masking import MaskedRow, MaskingPlan
from seatrial.relations.law import Measure, Relation

STANDARD_ERRORS = 5.0


def plan(**shares: float) -> Callable[[Any, int, bool], MaskingPlan]:
    """Return a law's `cases`: rows of unequal lengths, or of one in a tidy case."""

    def make(stack: Any, seed: int, tidy: bool) -> MaskingPlan:
        stream = random.Random(seed)
        lengths = [30 if tidy else stream.randint(5, 60) for _ in range(120)]
        rows = tuple(tuple(stream.choices(stack.ordinary_ids, k=size)) for size in lengths)
        return MaskingPlan(rows=rows, seed=seed, **shares)

    return make


MASKED = Relation(
    id="R15.masked",
    name="masked-rows-train-their-own-ids",
    component="masking",
    statement="A label is the id that was there; special ids and padding have none; shares are those configured.",
    cost="CPU, milliseconds",
    cases=plan(),
)


@MASKED.law("labels", "labels of what the model reads, of a neighbour, or of special ids")
def labels_are_the_ids(stack: Any, case: MaskingPlan) -> Measure:
    """Check every label, and that what has none is read as it is."""
    wrong = []
    for number, row in enumerate(stack.masked(case)):
        for place, (token, seen, label) in enumerate(zip(row.ids, row.seen, row.labels, strict=True)):
            if label is None and seen != token:
                wrong.append(f"row {number}, place {place} is changed and has no label")
            if label is not None and (label != token or token in stack.special_ids):
                wrong.append(f"row {number}, place {place} has the label {label} for {token}")
    return Measure.count(wrong, "places with a wrong label")


def _words_are_masks(stack: Any) -> str | None:
    return "words are replaced by masks alone" if stack.word_size > 1 else None


@MASKED.law("shares", "a share of the wrong ids, shares that are swapped", excluded=_words_are_masks)
@MASKED.law("shares, all masks", "a share that is ignored", cases=plan(share=0.4, replaced=1.0, random=0.0))
@MASKED.law(
    "shares, all random",
    "a share that is ignored",
    cases=plan(share=0.4, replaced=0.0, random=1.0),
    excluded=_words_are_masks,
)
@MASKED.law(
    "shares, half of each",
    "shares that are multiplied",
    cases=plan(share=0.3, replaced=0.5, random=0.4),
    excluded=_words_are_masks,
)
def shares_are_configured(stack: Any, case: MaskingPlan) -> Measure:
    """Compare how many ids train, and what takes their place, with the shares, in standard errors."""
    rows: list[MaskedRow] = stack.masked(case)
    places = [
        (token, seen, label)
        for row in rows
        for token, seen, label in zip(row.ids, row.seen, row.labels, strict=True)
        if token not in stack.special_ids
    ]
    trained = [(token, seen) for token, seen, label in places if label is not None]
    masks = sum(seen == stack.mask_id for _, seen in trained)
    same = sum(seen == token for token, seen in trained)
    found = [
        (_errors(len(trained), len(places), case.share), "ids that train"),
        (_errors(masks, len(trained), case.replaced, slack=0.02), "masks"),
        (_errors(same, len(trained), 1 - case.replaced - case.random, slack=0.02), "ids that stay"),
    ]
    return Measure.largest(found, STANDARD_ERRORS, f"shares of {len(places)} ids, standard errors")


def _errors(count: int, total: int, share: float, slack: float = 0.0) -> float:
    """Return by how many standard errors a count is off; `slack` is a share that may be added by chance."""
    if not total:
        return math.inf
    off = abs(count / total - share)
    return max(off - slack, 0.0) / math.sqrt(max(share * (1 - share), 1e-4) / total)


def _has_no_words(stack: Any) -> str | None:
    return "ids are masked one by one" if stack.word_size == 1 else None


@MASKED.law("whole words", "words that are masked in part, or all together", excluded=_has_no_words)
def words_are_masked_whole(stack: Any, case: MaskingPlan) -> Measure:
    """Check that all ids of a word train or none, and that neighbours differ."""
    wrong, borders = [], 0
    for number, row in enumerate(stack.masked(case)):
        trains = [label is not None for label in row.labels[1:-1]]
        words = [trains[place : place + stack.word_size] for place in range(0, len(trains), stack.word_size)]
        wrong += [
            f"row {number}, word {place}: {word}" for place, word in enumerate(words) if len({*word}) > 1
        ]
        borders += sum(one[-1] != other[0] for one, other in pairwise(words))
    return Measure.count(
        wrong if borders else ["neighbours are masked together"], "words that are masked in part"
    )


@MASKED.law("seeds", "the same mask in every batch, a seed that is ignored")
def seeds_decide(stack: Any, case: MaskingPlan) -> Measure:
    """Check that a seed repeats a batch, and that another one gives another."""
    first, again, other = (
        stack.masked(replace(case, seed=seed)) for seed in (case.seed, case.seed, case.seed + 1)
    )
    wrong = [] if first == again else ["the same seed gives another batch"]
    wrong += ["another seed gives the same batch"] if first == other else []
    return Measure.count(wrong, "seeds")
