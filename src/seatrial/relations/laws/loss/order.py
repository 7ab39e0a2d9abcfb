"""R5: neither the order of rows nor the other rows of a batch change a row's results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from seatrial.relations.cases import Rollout, rollout_for
from seatrial.relations.facts import bound_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.tensors import (
    counts_of,
    gradient_of,
    inputs_of,
    largest_difference,
    largest_score_difference,
    loss_difference,
)

BOUND = 1e-10
SCORE_BOUND = 2e-5


def _rollout_of_model(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy, vocab_size=stack.vocab_size)


CATALOGUE = "SB008 SB055 SB057 SB071 SB082 SB089 SB090 SB096 SB148 SB187 SB280 SB370"

ADVANTAGES = Relation(
    id="R5.advantages",
    name="advantages-follow-their-rows",
    component="advantages",
    statement="Reordering rows reorders advantages in the same manner.",
    catalogue=CATALOGUE,
    cost="CPU, milliseconds",
    cases=rollout_for,
)

LOSS = Relation(
    id="R5.loss",
    name="gradients-follow-their-rows",
    component="policy_loss",
    statement="Reordering rows leaves the loss and reorders the gradient in the same manner.",
    catalogue=CATALOGUE,
    cost="CPU, milliseconds",
    cases=rollout_for,
)

POLICY = Relation(
    id="R5.policy",
    name="scores-follow-their-rows",
    component="policy",
    statement="A row's log-probabilities do not depend on its place or on the other rows of the batch.",
    catalogue=CATALOGUE,
    cost="CPU, seconds",
    cases=_rollout_of_model,
)


@ADVANTAGES.law("reordered rows", "groups formed by position instead of by prompt")
def advantages_follow_rows(stack: Any, case: Rollout) -> Measure:
    """Compare the advantages of reordered rows with the reordered advantages."""
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


def _order(case: Rollout) -> list[int]:
    """Return a random order of the rows; the reverse when tidy."""
    if case.tidy:
        return list(range(len(case.rows)))[::-1]
    order = np.random.default_rng([case.seed, 5]).permutation(len(case.rows))
    return [int(row) for row in order]


@LOSS.law("reordered rows", "a per-row quantity of another row: advantages, lengths or masks shifted")
def gradients_follow_rows(stack: Any, case: Rollout) -> Measure:
    """Compare loss and gradient of reordered rows with the loss and the reordered gradient."""
    order = _order(case)
    counts = counts_of(case.rows)
    plain = inputs_of(case, counts=counts)
    moved = inputs_of(case, [case.rows[row] for row in order], counts=counts)
    plain_loss, moved_loss = stack.policy_loss(plain), stack.policy_loss(moved)
    error = loss_difference(
        float(moved_loss.detach()),
        float(plain_loss.detach()),
        gradient_of(moved_loss, moved),
        gradient_of(plain_loss, plain)[order],
    )
    return Measure(
        error=error,
        bound=bound_of(stack, BOUND),
        what="loss or gradient of reordered rows, relative difference",
    )


@POLICY.law("reordered rows", "results returned in another order than the rows")
def scores_follow_rows(stack: Any, case: Rollout) -> Measure:
    """Compare the log-probabilities of reordered rows with the reordered log-probabilities."""
    order = _order(case)
    plain = stack.score(case.rows, case.temperature)
    moved = stack.score([case.rows[row] for row in order], case.temperature)
    return _score_distance([plain[row] for row in order], moved, "reordered rows")


def _score_distance(left: list[tuple[float, ...]], right: list[tuple[float, ...]], what: str) -> Measure:
    error, place = largest_score_difference(left, right)
    return Measure(error=error, bound=SCORE_BOUND, what=f"log-probability of {what}, at {place}")


@POLICY.law(
    "alone and together", "attention to padding or to neighbours, one prompt length used for all rows"
)
def scores_alone_equal_scores_together(stack: Any, case: Rollout) -> Measure:
    """Compare the log-probabilities of rows scored alone with those of the whole batch."""
    together = stack.score(case.rows, case.temperature)
    alone = [stack.score([row], case.temperature)[0] for row in case.rows]
    return _score_distance(alone, together, "rows scored alone")


@POLICY.law("other rows", "a mask or position that depends on the longest row")
def other_rows_change_no_score(stack: Any, case: Rollout) -> Measure | None:
    """Replace every row but the first with a longer one (as long when tidy); the first keeps its log-probabilities."""
    if len(case.rows) < 2:
        return None
    longer = 1 if case.tidy else 3
    mates = [
        replace(row, prompt_ids=row.prompt_ids * longer, completion_ids=row.completion_ids[::-1])
        for row in case.rows[1:]
    ]
    plain = stack.score(case.rows, case.temperature)[:1]
    moved = stack.score([case.rows[0], *mates], case.temperature)[:1]
    return _score_distance(plain, moved, "a row next to other rows")


def _without_model(stack: Any) -> str | None:
    return None if hasattr(stack, "scored_model") else "it does not give the model that scores"


@POLICY.law(
    "the model's own log-probabilities",
    "a mask of attention that leaves out a part of the row, other positions, another temperature",
    excluded=_without_model,
)
def scores_are_those_of_the_model(stack: Any, case: Rollout) -> Measure:
    """Compare the log-probabilities with those of one forward pass a row, without padding, in the model's precision."""
    given, own, model = stack.score(case.rows, case.temperature), [], stack.scored_model()
    for row in case.rows:
        ids_1S = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
        with torch.no_grad():
            logprobs_SV = (model(input_ids=ids_1S).logits[0].double() / case.temperature).log_softmax(-1)
        first = len(row.prompt_ids) - 1
        own.append(tuple(float(logprobs_SV[first + t, one]) for t, one in enumerate(row.completion_ids)))
    return _score_distance(own, given, "rows against the model itself")
