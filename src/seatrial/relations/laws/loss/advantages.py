"""R17: rewards and advantages obey their algebra, and verifiers score golden and wrong answers right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from seatrial.relations.law import Law, Measure, Relation

BOUND = 1e-6
FLOAT32_BOUND = 1e-4  # rewards near 3 of a group that spreads by 0.05, computed in float32
SCALE_FREE = ("group", "batch")


@dataclass(frozen=True, kw_only=True)
class RewardCase:
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

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values."""
        return {"rewards": list(self.rewards), "prompt_ids": list(self.prompt_ids)}

    def advantages(
        self, stack: Any, transform: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Return the stack's advantages of these rewards, transformed first when asked."""
        rewards_B = torch.tensor(self.rewards, dtype=torch.float64)
        if transform:
            rewards_B = transform(rewards_B)
        result: torch.Tensor = stack.advantages(rewards_B, torch.tensor(self.prompt_ids))
        return result.double()

    def bound(self, stack: Any) -> float:
        """Return what rounding may leave, in the precision that the stack computes in."""
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


def _sums_to_zero(stack: Any, case: RewardCase) -> Measure:
    advantages_B = case.advantages(stack)
    sums = {prompt: abs(float(advantages_B[rows].sum())) for prompt, rows in case.groups().items()}
    worst = max(sums, key=lambda prompt: sums[prompt] if sums[prompt] == sums[prompt] else float("inf"))
    return Measure(
        error=sums[worst], bound=case.bound(stack), what=f"sum of the advantages of prompt {worst}"
    )


def _order_of_rewards(stack: Any, case: RewardCase) -> Measure:
    """Count pairs of a group whose advantages stand in another order than their rewards."""
    advantages_B = case.advantages(stack)
    wrong = sum(
        not (case.rewards[a] - case.rewards[b]) * float(advantages_B[a] - advantages_B[b]) > 0
        for rows in case.groups().values()
        for a in rows
        for b in rows
        if case.rewards[a] > case.rewards[b] + 1e-9
    )
    return Measure(
        error=float(wrong), bound=0, what="pairs of a group whose better row has no larger advantage"
    )


def _shift_invariant(stack: Any, case: RewardCase) -> Measure:
    """Add another constant to every group: nothing changes. (One constant where the batch's rewards set the scale.)"""
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


def _scale_as_configured(stack: Any, case: RewardCase) -> Measure:
    factor = 1.0 if stack.advantage_spec.scale in SCALE_FREE else 3.0
    scaled_B = case.advantages(stack, lambda rewards_B: rewards_B * 3.0)
    plain_B = case.advantages(stack)
    error = float((scaled_B - factor * plain_B).abs().max()) / max(1.0, float(plain_B.abs().max()))
    bound = max(1e-4, 2 * stack.advantage_spec.epsilon / case.smallest_deviation())
    return Measure(
        error=error, bound=bound, what=f"tripled rewards must give {factor:g} times the advantages"
    )


def _constant_group_is_zero(stack: Any, case: RewardCase) -> Measure | None:
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


def _scaled_by_the_batch(stack: Any) -> str | None:
    return "advantage_spec.scale='batch'" if stack.advantage_spec.scale == "batch" else None


def _groups_are_apart(stack: Any, case: RewardCase) -> Measure | None:
    """Change the rewards of one group: the others' advantages stay."""
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


@dataclass(frozen=True, kw_only=True)
class VerifierCase:
    """Golden and wrong answers in a shuffled order."""

    order: tuple[int, ...]
    triples: tuple[tuple[Any, str, float], ...]

    def smaller(self) -> Iterator[VerifierCase]:
        """Yield halves, then the case without one answer: a verifier may take seconds over each."""
        half = len(self.order) // 2
        if half:
            yield replace(self, order=self.order[:half])
            yield replace(self, order=self.order[half:])
        for drop in range(len(self.order)):
            if len(self.order) > 2:
                yield replace(self, order=self.order[:drop] + self.order[drop + 1 :])

    def describe(self) -> Mapping[str, Any]:
        """Return the answers with the reward that is right."""
        return {"answers": [[str(part) for part in self.triples[index]] for index in self.order]}


def _make_answers(stack: Any, seed: int, tidy: bool) -> VerifierCase:
    """Return every answer, shuffled; when tidy the right answers alone, in their order."""
    triples = tuple(stack.reward_cases())
    if tidy:
        triples = tuple(triple for triple in triples if triple[2] == 1.0)
    order = np.arange(len(triples)) if tidy else np.random.default_rng(seed).permutation(len(triples))
    return VerifierCase(order=tuple(int(index) for index in order), triples=triples)


def _verifier_is_right(stack: Any, case: VerifierCase) -> Measure:
    chosen = [case.triples[index] for index in case.order]
    given = stack.reward([problem for problem, _, _ in chosen], [completion for _, completion, _ in chosen])
    if len(given) != len(chosen):
        return Measure(
            error=float("inf"), bound=0, what=f"{len(given)} rewards for {len(chosen)} completions"
        )
    errors = [abs(float(reward) - right) for reward, (_, _, right) in zip(given, chosen, strict=True)]
    worst = int(np.nanargmax(errors)) if not np.isnan(errors).all() else 0
    return Measure(
        error=float("nan") if np.isnan(errors).any() else errors[worst],
        bound=1e-9,
        what=f"reward of {chosen[worst][1]!r}: {given[worst]}, right is {chosen[worst][2]}",
    )


RELATIONS = (
    Relation(
        id="R17.advantages",
        name="advantage-algebra",
        component="advantages",
        statement="Group advantages sum to zero, keep the order of rewards, ignore shifts, scale as configured.",
        catalogue=("SB069", "SB074", "SB082", "SB083", "SB084", "SB087", "SB088", "SB089", "SB091", "SB093"),
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="advantages of a group sum to zero",
                make=_make,
                measure=_sums_to_zero,
                suspects="groups formed by position, a baseline over the batch, no baseline",
            ),
            Law(
                name="a better row has a larger advantage",
                make=_make,
                measure=_order_of_rewards,
                suspects="the sign inverted, rewards moved between rows, a baseline of another group",
            ),
            Law(
                name="a constant added to a group changes nothing",
                make=_make,
                measure=_shift_invariant,
                suspects="a missing or clipped baseline",
            ),
            Law(
                name="scaling rewards scales advantages as configured",
                make=_make,
                measure=_scale_as_configured,
                suspects="the deviation left out or applied although switched off, an epsilon that is too large",
            ),
            Law(
                name="a group without contrast gets exactly zero",
                make=_make,
                measure=_constant_group_is_zero,
                suspects="rounding noise divided by a tiny deviation",
            ),
            Law(
                name="groups do not see each other",
                make=_make,
                measure=_groups_are_apart,
                excluded=_scaled_by_the_batch,
                suspects="groups formed by position, statistics over the batch",
            ),
        ),
    ),
    Relation(
        id="R17.reward",
        name="verifier-is-right",
        component="reward",
        statement="Golden answers and wrong answers get the reward that is right, in any order.",
        catalogue=("SB068", "SB071", "SB075", "SB076", "SB077"),
        cost="CPU, milliseconds to seconds",
        laws=(
            Law(
                name="reward of each answer",
                make=_make_answers,
                measure=_verifier_is_right,
                suspects="rewards moved between rows, a parser that misses the answer, a failure turned into 0",
            ),
        ),
    ),
)
