"""R4: packed rows are the rows they were: same log-probabilities, and no sight of their neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seatrial.relations.cases import Rollout, rollout_for
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.tensors import largest_gradient_difference, largest_score_difference
from seatrial.relations.worst import is_worse

SCORE_BOUND = 2e-5
GRADIENT_BOUND = 2e-5


def _make(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy, vocab_size=stack.vocab_size, num_prompts=3, num_generations=2)


def _same_scores(stack: Any, case: Rollout) -> Measure:
    packed = stack.score_packed(case.rows, case.temperature)
    alone = [stack.score([row], case.temperature)[0] for row in case.rows]
    error, place = largest_score_difference(packed, alone)
    return Measure(
        error=error, bound=SCORE_BOUND, what=f"log-probability of a packed row against the row alone, {place}"
    )


def _neighbours_unseen(stack: Any, case: Rollout) -> Measure | None:
    """Change the content of each row in turn, not its length: every other row keeps its log-probabilities.

    In both directions, since a causal model never shows a row what follows it.
    """
    if len(case.rows) < 2:
        return None
    before = stack.score_packed(case.rows, case.temperature)
    worst, what = 0.0, "no row"
    for changed, row in enumerate(case.rows):
        other = replace(
            row,
            prompt_ids=tuple((token + 5) % case.vocab_size for token in row.prompt_ids),
            completion_ids=tuple((token + 3) % case.vocab_size for token in row.completion_ids),
        )
        rows = [*case.rows[:changed], other, *case.rows[changed + 1 :]]
        after = stack.score_packed(rows, case.temperature)
        for seen in range(len(rows)):
            error, _ = largest_score_difference([after[seen]], [before[seen]])
            if seen != changed and is_worse(error, worst):
                worst, what = error, f"row {seen} after row {changed} changed"
    return Measure(error=worst, bound=SCORE_BOUND, what=f"log-probability of {what}")


def _same_gradient(stack: Any, case: Rollout) -> Measure:
    everything = [list(range(len(case.rows)))]
    packed = stack.gradients_packed(case.rows, everything)
    padded = stack.gradients(case.rows, everything)
    error, name = largest_gradient_difference(packed.gradients, padded.gradients)
    return Measure(
        error=error,
        bound=GRADIENT_BOUND,
        what=f"gradient of {name}, packed against padded, relative difference",
    )


SUSPECTS = "positions that run on across the pack, attention across boundaries, a boundary off by one"

RELATIONS = (
    Relation(
        id="R4.packing",
        name="packed-equals-padded",
        component="packing",
        statement="Packed rows have the log-probabilities and gradients of the same rows alone, whatever their mates.",
        catalogue=(
            "SB015",
            "SB026",
            "SB094",
            "SB095",
            "SB101",
            "SB103",
            "SB104",
            "SB109",
            "SB110",
            "SB114",
            "SB115",
        ),
        cost="CPU, seconds",
        laws=(
            Law(name="log-probabilities", make=_make, measure=_same_scores, suspects=SUSPECTS),
            Law(name="neighbours are not seen", make=_make, measure=_neighbours_unseen, suspects=SUSPECTS),
            Law(name="gradient", make=_make, measure=_same_gradient, suspects=SUSPECTS),
        ),
    ),
)
