"""R17: the algebra of advantages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation
from seatrial.relations.worst import Worst

BOUND = 1e-6
FLOAT32_BOUND = 1e-4  # rewards near 3 of a group that spreads by 0.05, computed in float32
SCALE_FREE = ("group", "batch")


@dataclass(frozen=True, kw_only=True)
class RewardCase(Case):
    """Rewards of groups of unequal size whose rows are interleaved."""

    rewards: tuple[float, ...]
    prompt_ids: tuple[int, ...]

    def smaller(self) -> Iterator[RewardCase]:
        """Yield the case without one row."""
        for drop in range(len(self.rewards)):
            if len(self.rewards) > 1:
                yield replace(
                    self,
                    rewards=self.rewards[:drop] + self.rewards[drop + 1 :],
                    prompt_ids=self.prompt_ids[:drop] + self.prompt_ids[drop + 1 :],
                )

    def advantages(
        self, stack: Any, transform: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Return the stack's advantages of these rewards, transformed first if there is a transformation."""
        rewards_B = torch.tensor(self.rewards, dtype=torch.float64)
        if transform:
            rewards_B = transform(rewards_B)
        result: torch.Tensor = stack.advantages(rewards_B, torch.tensor(self.prompt_ids))
        return result.double()

    def bound(self, stack: Any) -> float:
        """Return the bound on rounding errors in the precision of the stack."""
        rewards_B = torch.tensor(self.rewards, dtype=torch.float64)
        given_B = stack.advantages(rewards_B, torch.tensor(self.prompt_ids))
        return BOUND if given_B.dtype == torch.float64 else FLOAT32_BOUND

    def smallest_deviation(self) -> float:
        """Return the smallest standard deviation of a group whose rewards differ; 1 where none do."""
        groups = [[self.rewards[row] for row in rows] for rows in self.groups().values()]
        return min((float(np.std(group)) for group in groups if len(set(group)) > 1), default=1.0)

    def groups(self) -> dict[int, list[int]]:
        """Return the rows of each prompt."""
        rows: dict[int, list[int]] = {}
        for row, prompt in enumerate(self.prompt_ids):
            rows.setdefault(prompt, []).append(row)
        return rows


def _make(stack: Any, seed: int, tidy: bool) -> RewardCase:
    rng = np.random.default_rng([seed, 17])
    if tidy:
        return RewardCase(rewards=(1.0, 0.0) * 4, prompt_ids=tuple(np.repeat([0, 1], 4).tolist()))
    rewards, prompts = [], []
    for prompt, size in enumerate(rng.integers(2, 6, size=4)):
        # Groups differ in level and spread, so statistics of the batch are not those of a group.
        level, spread = rng.normal(0, 3), rng.uniform(0.2, 2)
        rewards += (level + spread * rng.normal(size=size)).round(3).tolist()
        prompts += [30 - prompt] * int(size)
    rewards += [0.7] * 3 + [0.25]
    prompts += [77] * 3 + [99]
    order = rng.permutation(len(rewards))
    return RewardCase(
        rewards=tuple(rewards[index] for index in order), prompt_ids=tuple(prompts[index] for index in order)
    )


def _scaled_by_the_batch(stack: Any) -> str | None:
    return "advantage_spec.scale='batch'" if stack.advantage_spec.scale == "batch" else None


ADVANTAGES = Relation(
    id="R17.advantages",
    name="advantage-algebra",
    component="advantages",
    statement="Group advantages sum to zero, keep the order of rewards, ignore shifts, scale as configured.",
    catalogue="SB069 SB074 SB082 SB083 SB084 SB087 SB088 SB089 SB091 SB093",
    cost="CPU, milliseconds",
    cases=_make,
)


@ADVANTAGES.law(
    "advantages of a group sum to zero", "groups formed by position, a baseline over the batch, no baseline"
)
def group_sums_to_zero(stack: Any, case: RewardCase) -> Measure:
    """Check that the advantages of each group sum to zero."""
    advantages_B = case.advantages(stack)
    worst = Worst()
    for prompt, rows in case.groups().items():
        worst.add(abs(float(advantages_B[rows].sum())), f"prompt {prompt}")
    return Measure(error=worst.error, bound=case.bound(stack), what=f"sum of the advantages of {worst.place}")


@ADVANTAGES.law(
    "a better row has a larger advantage",
    "the sign inverted, rewards moved between rows, a baseline of another group",
)
def better_row_has_larger_advantage(stack: Any, case: RewardCase) -> Measure:
    """Count the pairs of a group whose advantages are not in the order of their rewards."""
    advantages_B = case.advantages(stack)
    wrong = sum(
        not (case.rewards[a] - case.rewards[b]) * float(advantages_B[a] - advantages_B[b]) > 0
        for rows in case.groups().values()
        for a in rows
        for b in rows
        if case.rewards[a] > case.rewards[b] + 1e-9
    )
    return Measure(error=wrong, bound=0, what="pairs of a group whose better row has no larger advantage")


@ADVANTAGES.law("a constant added to a group changes nothing", "a missing or clipped baseline")
def shift_changes_nothing(stack: Any, case: RewardCase) -> Measure:
    """Add another constant to each group (the same one if the batch sets the scale): nothing changes."""
    spec = stack.advantage_spec
    whole = spec.scale == "batch" and spec.estimator != "reinforce_plus_plus_baseline"
    shift_B = torch.tensor([3.0 if whole else float(p % 7) - 3 for p in case.prompt_ids], dtype=torch.float64)
    moved_B = case.advantages(stack, lambda rewards_B: rewards_B + shift_B)
    error = float((moved_B - case.advantages(stack)).abs().max())
    return Measure(
        error=error,
        bound=case.bound(stack),
        what="change of an advantage when a group's rewards shift by a constant",
    )


@ADVANTAGES.law(
    "scaling rewards scales advantages as configured",
    "the deviation left out or applied although switched off, an epsilon that is too large",
)
def scale_as_configured(stack: Any, case: RewardCase) -> Measure:
    """Triple all rewards: advantages triple or stay the same, as configured."""
    factor = 1.0 if stack.advantage_spec.scale in SCALE_FREE else 3.0
    scaled_B = case.advantages(stack, lambda rewards_B: rewards_B * 3.0)
    plain_B = case.advantages(stack)
    error = float((scaled_B - factor * plain_B).abs().max()) / max(1.0, float(plain_B.abs().max()))
    bound = max(1e-4, 2 * stack.advantage_spec.epsilon / case.smallest_deviation())
    return Measure(
        error=error, bound=bound, what=f"tripled rewards must give {factor:g} times the advantages"
    )


@ADVANTAGES.law("a group without contrast gets exactly zero", "rounding noise divided by a tiny deviation")
def equal_rewards_give_zero(stack: Any, case: RewardCase) -> Measure | None:
    """Check that groups of equal rewards or of one row have advantages of exactly zero."""
    rows = [
        row
        for rows in case.groups().values()
        for row in rows
        if len({case.rewards[other] for other in rows}) == 1
    ]
    if not rows:
        return None
    advantages_B = case.advantages(stack)
    return Measure(
        error=float(advantages_B[rows].abs().max()),
        bound=0.0,
        what="advantage in a group of equal rewards or of one row",
    )


@ADVANTAGES.law(
    "groups are independent",
    "groups formed by position, statistics over the batch",
    excluded=_scaled_by_the_batch,
)
def groups_are_independent(stack: Any, case: RewardCase) -> Measure | None:
    """Change the rewards of one group: the advantages of the others stay the same."""
    groups = case.groups()
    if len(groups) < 2:
        return None
    changed = next(iter(groups))
    mask_B = torch.tensor([prompt == changed for prompt in case.prompt_ids])
    moved_B = case.advantages(stack, lambda rewards_B: torch.where(mask_B, rewards_B**2 + 5.0, rewards_B))
    error = float((moved_B - case.advantages(stack))[~mask_B].abs().max())
    return Measure(
        error=error, bound=0.0, what=f"change of other groups' advantages when prompt {changed} changes"
    )
