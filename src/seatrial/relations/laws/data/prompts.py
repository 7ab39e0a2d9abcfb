"""R14 of prompts: an epoch serves every prompt once, resumed or not; splits share nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation


@dataclass(frozen=True, kw_only=True)
class EpochCase(Case):
    """How an epoch is drawn."""

    seed: int
    batch_size: int
    skip: int

    def smaller(self) -> Iterator[EpochCase]:
        """Yield batches of one and no skip."""
        if self.batch_size > 1:
            yield replace(self, batch_size=1)
        if self.skip:
            yield replace(self, skip=0)


def _make(stack: Any, seed: int, tidy: bool) -> EpochCase:
    train = list(stack.splits()["train"])
    if tidy:
        return EpochCase(seed=seed, batch_size=1, skip=0)
    batch_size = 2 + seed % 4
    return EpochCase(seed=seed, batch_size=batch_size, skip=min(1 + seed % 3, (len(train) - 1) // batch_size))


PROMPTS = Relation(
    id="R14.prompts",
    name="every-prompt-once",
    component="prompt_source",
    statement="An epoch serves every training prompt exactly once, resumed or not; splits share no prompt.",
    catalogue="SB108 SB112 SB277 SB285 SB288 SB297 SB302 SB306 SB310 SB384 SB395",
    cost="CPU, milliseconds",
    cases=_make,
)


@PROMPTS.law(
    "every prompt once", "a last batch dropped, sampling with replacement, workers that serve the same shard"
)
def every_prompt_once(stack: Any, case: EpochCase) -> Measure:
    """Check that an epoch serves each training prompt exactly once."""
    served = Counter(prompt for batch in _epoch(stack, case) for prompt in batch)
    wanted = Counter(stack.splits()["train"])
    lost, extra = (wanted - served).total(), (served - wanted).total()
    return Measure(
        error=lost + extra, bound=0, what=f"prompts lost ({lost}) or served too often ({extra}) in an epoch"
    )


def _epoch(stack: Any, case: EpochCase, skip: int = 0) -> list[list[int]]:
    return [list(batch) for batch in stack.epoch(seed=case.seed, batch_size=case.batch_size, skip=skip)]


@PROMPTS.law("resume continues", "the cursor not saved, the order shuffled again from another state")
def resumed_epoch_continues(stack: Any, case: EpochCase) -> Measure:
    """Check that an epoch resumed after some batches serves the rest of the original epoch."""
    whole, rest = _epoch(stack, case), _epoch(stack, case, skip=case.skip)
    return Measure(
        error=whole[case.skip :] != rest,
        bound=0,
        what=f"epoch resumed after {case.skip} batches differs (1: yes)",
    )


@PROMPTS.law("order follows the seed", "a fixed seed, the global generator used for the order")
def order_follows_the_seed(stack: Any, case: EpochCase) -> Measure:
    """Check that one seed gives one order, and another seed another."""
    other = replace(case, seed=case.seed + 1)
    repeats = _epoch(stack, case) == _epoch(stack, case)
    varies = _epoch(stack, case) != _epoch(stack, other)
    return Measure(
        error=(not repeats) + (not varies),
        bound=0,
        what="order not repeated with its seed, or not changed with another",
    )


@PROMPTS.law("splits are disjoint", "validation drawn from the training prompts")
def splits_are_disjoint(stack: Any, case: EpochCase) -> Measure:
    """Check that no two splits share a prompt."""
    splits = {name: set(ids) for name, ids in stack.splits().items()}
    shared = sum(len(splits[a] & splits[b]) for a in splits for b in splits if a < b)
    return Measure(error=shared, bound=0, what="prompts that two splits share")
