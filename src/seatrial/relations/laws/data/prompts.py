"""R14 and R23's data half: every prompt of an epoch is served once, resumed or not; splits share nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.law import Law, Measure, Relation


@dataclass(frozen=True, kw_only=True)
class EpochCase:
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

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values."""
        return vars(self)


def _make(stack: Any, seed: int, tidy: bool) -> EpochCase:
    train = list(stack.splits()["train"])
    if tidy:
        return EpochCase(seed=seed, batch_size=1, skip=0)
    batch_size = 2 + seed % 4
    return EpochCase(seed=seed, batch_size=batch_size, skip=min(1 + seed % 3, (len(train) - 1) // batch_size))


def _epoch(stack: Any, case: EpochCase, skip: int = 0) -> list[list[int]]:
    return [list(batch) for batch in stack.epoch(seed=case.seed, batch_size=case.batch_size, skip=skip)]


def _every_prompt_once(stack: Any, case: EpochCase) -> Measure:
    served = Counter(prompt for batch in _epoch(stack, case) for prompt in batch)
    wanted = Counter(stack.splits()["train"])
    lost, extra = wanted - served, served - wanted
    return Measure(
        error=float(sum(lost.values()) + sum(extra.values())),
        bound=0,
        what=f"prompts lost ({sum(lost.values())}) or served too often ({sum(extra.values())}) in an epoch",
    )


def _resume_goes_on(stack: Any, case: EpochCase) -> Measure:
    whole, rest = _epoch(stack, case), _epoch(stack, case, skip=case.skip)
    same = whole[case.skip :] == rest
    return Measure(
        error=0.0 if same else 1.0, bound=0, what=f"epoch resumed after {case.skip} batches differs (1: yes)"
    )


def _order_follows_the_seed(stack: Any, case: EpochCase) -> Measure:
    other = replace(case, seed=case.seed + 1)
    repeats = _epoch(stack, case) == _epoch(stack, case)
    varies = _epoch(stack, case) != _epoch(stack, other)
    return Measure(
        error=float(not repeats) + float(not varies),
        bound=0,
        what="order not repeated by its seed, or not changed by another",
    )


def _splits_are_disjoint(stack: Any, case: EpochCase) -> Measure:
    splits = {name: set(ids) for name, ids in stack.splits().items()}
    shared = sum(len(splits[a] & splits[b]) for a in splits for b in splits if a < b)
    return Measure(error=float(shared), bound=0, what="prompts that two splits share")


RELATIONS = (
    Relation(
        id="R14.prompts",
        name="every-prompt-once",
        component="prompt_source",
        statement="An epoch serves every training prompt exactly once, resumed or not; splits share no prompt.",
        catalogue=(
            "SB108",
            "SB112",
            "SB277",
            "SB285",
            "SB288",
            "SB297",
            "SB302",
            "SB306",
            "SB310",
            "SB384",
            "SB395",
        ),
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="every prompt once",
                make=_make,
                measure=_every_prompt_once,
                suspects="a last batch dropped, sampling with replacement, workers that serve the same shard",
            ),
            Law(
                name="resume goes on",
                make=_make,
                measure=_resume_goes_on,
                suspects="the cursor not saved, the order shuffled again from another state",
            ),
            Law(
                name="order follows the seed",
                make=_make,
                measure=_order_follows_the_seed,
                suspects="a fixed seed, the global generator used for the order",
            ),
            Law(
                name="splits are disjoint",
                make=_make,
                measure=_splits_are_disjoint,
                suspects="validation drawn from the training prompts",
            ),
        ),
    ),
)
