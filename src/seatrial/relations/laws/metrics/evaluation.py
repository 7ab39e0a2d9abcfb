"""R23: evaluation does not change the training state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation


@dataclass(frozen=True, kw_only=True)
class SeedCase(Case):
    """A short training run."""

    seed: int
    tidy: bool = False
    """Compare only the weights, as an ordinary test does, not logs, streams or modes."""


def _make_seed(stack: Any, seed: int, tidy: bool) -> SeedCase:
    return SeedCase(seed=seed, tidy=tidy)


EVALUATION = Relation(
    id="R23.evaluation",
    name="evaluation-changes-nothing",
    component="evaluation",
    statement="Training with validation in between ends in exactly the state of training without.",
    catalogue="SB216 SB217 SB390 SB391 SB393 SB394 SB396 SB397",
    cost="CPU, seconds",
    cases=_make_seed,
)


@EVALUATION.law(
    "state after training",
    "one random stream for both, dropout left off, data drawn from the training iterator",
)
def evaluation_changes_nothing(stack: Any, case: SeedCase) -> Measure:
    """Compare the state after training with validation in between with the state after training without."""
    plain = stack.train_with_evaluation(evaluate=False, seed=case.seed)
    evaluated = stack.train_with_evaluation(evaluate=True, seed=case.seed)
    if plain.keys() != evaluated.keys():
        return Measure(
            error=math.inf, bound=0, what=f"state that only one run has: {plain.keys() ^ evaluated.keys()}"
        )
    compared = [name for name in sorted(plain) if name.startswith("weight") or not case.tidy]
    changed = [name for name in compared if not _same(plain[name], evaluated[name])]
    return Measure.count(changed, "training state changed by evaluation")


def _same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)
