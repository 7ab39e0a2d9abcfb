"""A relation: advantages do not depend on what a prompt is called."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from seatrial.relations.law import Law, Measure, Relation


@dataclass(frozen=True)
class Groups:
    """Rewards of groups of unequal size."""

    rewards: tuple[float, ...]
    prompt_ids: tuple[int, ...]

    def smaller(self) -> Iterator[Groups]:
        """Yield the case without one row: a failure is shown on the smallest case that breaks the law."""
        for drop in range(len(self.rewards) - 1):
            kept = [row for row in range(len(self.rewards)) if row != drop]
            yield replace(
                self,
                rewards=tuple(self.rewards[row] for row in kept),
                prompt_ids=tuple(self.prompt_ids[row] for row in kept),
            )

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values, so that a person can replay it."""
        return {"rewards": self.rewards, "prompt_ids": self.prompt_ids}


def _make(stack: Any, seed: int, tidy: bool) -> Groups:
    """Make a case from a seed; tidy cases are easy on purpose, to show what the others find beyond them."""
    stream = random.Random(seed)
    sizes = [3, 3] if tidy else [stream.randint(2, 5) for _ in range(4)]
    prompt_ids = [prompt for prompt, size in enumerate(sizes) for _ in range(size)]
    if not tidy:
        stream.shuffle(prompt_ids)
    return Groups(tuple(stream.random() for _ in prompt_ids), tuple(prompt_ids))


def _renamed(stack: Any, case: Groups) -> Measure:
    """Ask the stack twice: with the ids as they are, and with others in another order. NaN never holds."""
    rewards_B = torch.tensor(case.rewards, dtype=torch.float64)
    ids_B = torch.tensor(case.prompt_ids)
    difference_B = stack.advantages(rewards_B, ids_B) - stack.advantages(rewards_B, 10**12 - 7 * ids_B)
    return Measure(
        error=float(difference_B.abs().max()),
        bound=1e-9,
        what="largest change of an advantage when prompts get other ids",
    )


RELATIONS = (
    Relation(
        id="MY1.advantages",
        name="names-of-prompts",
        component="advantages",
        statement="Advantages stay when every prompt gets another id.",
        catalogue=(),
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="prompts renamed",
                make=_make,
                measure=_renamed,
                suspects="ids used as positions, or cut to fewer bits",
            ),
        ),
    ),
)
