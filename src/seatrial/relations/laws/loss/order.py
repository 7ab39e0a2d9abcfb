"""R5: the order of rows and a row's mates in the batch change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from seatrial.relations.cases import Rollout, rollout_for
from seatrial.relations.facts import bound_of
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.tensors import (
    counts_of,
    gradient_of,
    inputs_of,
    largest_difference,
    largest_score_difference,
)
from seatrial.relations.worst import largest

BOUND = 1e-10
SCORE_BOUND = 2e-5


def _make(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy)


def _make_for_model(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy, vocab_size=stack.vocab_size)


def _order(case: Rollout) -> list[int]:
    """Return a random order of the rows; the reverse when tidy."""
    if case.tidy:
        return list(range(len(case.rows)))[::-1]
    order = np.random.default_rng([case.seed, 5]).permutation(len(case.rows))
    return [int(row) for row in order]


def _advantages_follow(stack: Any, case: Rollout) -> Measure:
    order = _order(case)
    rewards_B = torch.tensor([row.reward for row in case.rows], dtype=torch.float64)
    prompts_B = torch.tensor([row.prompt_id for row in case.rows])
    plain_B = stack.advantages(rewards_B, prompts_B)
    moved_B = stack.advantages(rewards_B[order], prompts_B[order])
    return Measure(
        error=largest_difference(moved_B.double(), plain_B[order].double()),
        bound=1e-9 if plain_B.dtype == torch.float64 else 1e-5,
        what="advantages of reordered rows against the reordered advantages, relative difference",
    )


def _gradients_follow(stack: Any, case: Rollout) -> Measure:
    order = _order(case)
    counts = counts_of(case.rows)
    plain = inputs_of(case, counts=counts)
    moved = inputs_of(case, [case.rows[row] for row in order], counts=counts)
    plain_loss, moved_loss = stack.policy_loss(plain), stack.policy_loss(moved)
    error = largest(
        (
            abs(float(moved_loss.detach() - plain_loss.detach()))
            / max(abs(float(plain_loss.detach())), 1e-3),
            largest_difference(gradient_of(moved_loss, moved), gradient_of(plain_loss, plain)[order]),
        )
    )
    return Measure(
        error=error,
        bound=bound_of(stack, BOUND),
        what="loss or gradient of reordered rows, relative difference",
    )


def _scores_follow(stack: Any, case: Rollout) -> Measure:
    order = _order(case)
    plain = stack.score(case.rows, case.temperature)
    moved = stack.score([case.rows[row] for row in order], case.temperature)
    return _score_distance([plain[row] for row in order], moved, "reordered rows")


def _score_alone(stack: Any, case: Rollout) -> Measure:
    together = stack.score(case.rows, case.temperature)
    alone = [stack.score([row], case.temperature)[0] for row in case.rows]
    return _score_distance(alone, together, "rows scored alone")


def _score_other_mates(stack: Any, case: Rollout) -> Measure | None:
    """Replace every row but the first by longer ones (as long when tidy): the first keeps its log-probabilities."""
    if len(case.rows) < 2:
        return None
    longer = 1 if case.tidy else 3
    mates = [
        replace(row, prompt_ids=row.prompt_ids * longer, completion_ids=row.completion_ids[::-1])
        for row in case.rows[1:]
    ]
    plain = stack.score(case.rows, case.temperature)[:1]
    moved = stack.score([case.rows[0], *mates], case.temperature)[:1]
    return _score_distance(plain, moved, "a row beside other rows")


def _score_distance(left: list[tuple[float, ...]], right: list[tuple[float, ...]], what: str) -> Measure:
    worst, place = largest_score_difference(left, right)
    return Measure(error=worst, bound=SCORE_BOUND, what=f"log-probability of {what}, at {place}")


CATALOGUE = (
    "SB008", "SB055", "SB057", "SB071", "SB082", "SB089", "SB090", "SB096", "SB148", "SB187", "SB280", "SB370",
)  # fmt: skip

RELATIONS = (
    Relation(
        id="R5.advantages",
        name="advantages-follow-their-rows",
        component="advantages",
        statement="Reordering rows reorders advantages in the same manner.",
        catalogue=CATALOGUE,
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="reordered rows",
                make=_make,
                measure=_advantages_follow,
                suspects="groups formed by position instead of by prompt",
            ),
        ),
    ),
    Relation(
        id="R5.loss",
        name="gradients-follow-their-rows",
        component="policy_loss",
        statement="Reordering rows leaves the loss and reorders the gradient in the same manner.",
        catalogue=CATALOGUE,
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="reordered rows",
                make=_make,
                measure=_gradients_follow,
                suspects="a per-row quantity of another row: advantages, lengths or masks shifted",
            ),
        ),
    ),
    Relation(
        id="R5.policy",
        name="scores-follow-their-rows",
        component="policy",
        statement="A row's log-probabilities do not depend on its place or on its mates in the batch.",
        catalogue=CATALOGUE,
        cost="CPU, seconds",
        laws=(
            Law(
                name="reordered rows",
                make=_make_for_model,
                measure=_scores_follow,
                suspects="results handed back in another order than the rows",
            ),
            Law(
                name="alone and together",
                make=_make_for_model,
                measure=_score_alone,
                suspects="attention to padding or to neighbours, one prompt length used for all rows",
            ),
            Law(
                name="other mates",
                make=_make_for_model,
                measure=_score_other_mates,
                suspects="a mask or position that depends on the longest row",
            ),
        ),
    ),
)
