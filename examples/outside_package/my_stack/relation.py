"""A relation: advantages do not depend on the id of a prompt."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation


@dataclass(frozen=True)
class Groups(Case):
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


def make_groups(stack: Any, seed: int, tidy: bool) -> Groups:
    """Make a case from a seed. Tidy cases are easy on purpose: they show what the other cases find in addition."""
    stream = random.Random(seed)
    sizes = [3, 3] if tidy else [stream.randint(2, 5) for _ in range(4)]
    prompt_ids = [prompt for prompt, size in enumerate(sizes) for _ in range(size)]
    if not tidy:
        stream.shuffle(prompt_ids)
    return Groups(tuple(stream.random() for _ in prompt_ids), tuple(prompt_ids))


PROMPT_IDS = Relation(
    id="MY1.advantages",
    name="ids-of-prompts",
    component="advantages",
    statement="Advantages stay the same when every prompt gets another id.",
    cost="CPU, milliseconds",
    cases=make_groups,
)


@PROMPT_IDS.law("prompts get other ids", suspects="ids used as positions, or truncated to fewer bits")
def other_ids(stack: Any, case: Groups) -> Measure:
    """Compare the advantages under the given ids with those under other ids. NaN never holds."""
    rewards_B = torch.tensor(case.rewards, dtype=torch.float64)
    ids_B = torch.tensor(case.prompt_ids)
    difference_B = stack.advantages(rewards_B, ids_B) - stack.advantages(rewards_B, 10**12 - 7 * ids_B)
    return Measure(
        error=float(difference_B.abs().max()),
        bound=1e-9,
        what="largest change of an advantage when prompts get other ids",
    )
