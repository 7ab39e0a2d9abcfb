"""R23: evaluating changes nothing that trains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from seatrial.relations.law import Law, Measure, Relation


@dataclass(frozen=True, kw_only=True)
class SeedCase:
    """A short training run."""

    seed: int
    tidy: bool = False
    """Compare the weights alone, as an ordinary test does, and neither logs, streams nor modes."""

    def smaller(self) -> Iterator[SeedCase]:
        """Nothing is smaller."""
        return iter(())

    def describe(self) -> Mapping[str, Any]:
        """Return the seed."""
        return {"seed": self.seed}


def _make_seed(stack: Any, seed: int, tidy: bool) -> SeedCase:
    return SeedCase(seed=seed, tidy=tidy)


def _evaluation_changes_nothing(stack: Any, case: SeedCase) -> Measure:
    plain = stack.train_with_evaluation(evaluate=False, seed=case.seed)
    evaluated = stack.train_with_evaluation(evaluate=True, seed=case.seed)
    if plain.keys() != evaluated.keys():
        return Measure(
            error=math.inf, bound=0, what=f"state that only one run has: {plain.keys() ^ evaluated.keys()}"
        )
    compared = [name for name in sorted(plain) if name.startswith("weight") or not case.tidy]
    changed = [name for name in compared if not _same(plain[name], evaluated[name])]
    return Measure(
        error=float(len(changed)),
        bound=0,
        what=f"training state changed by evaluation ({changed[:3] or 'none'})",
    )


def _same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)


RELATIONS = (
    Relation(
        id="R23.evaluation",
        name="evaluation-changes-nothing",
        component="evaluation",
        statement="Training with validation in between ends in exactly the state of training without.",
        catalogue=("SB216", "SB217", "SB390", "SB391", "SB393", "SB394", "SB396", "SB397"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="state after training",
                make=_make_seed,
                measure=_evaluation_changes_nothing,
                suspects="one random stream for both, dropout left off, data drawn from the training iterator",
            ),
        ),
    ),
)
