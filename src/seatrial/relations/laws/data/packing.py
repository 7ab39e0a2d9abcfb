"""R4: packing changes no log-probability and no gradient, and packed rows do not see each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seatrial.relations.cases import Rollout, rollout_of_model
from seatrial.relations.law import Measure, Relation
from seatrial.relations.tensors import largest_gradient_difference, largest_score_difference
from seatrial.relations.worst import Worst

SCORE_BOUND = 2e-5
GRADIENT_BOUND = 2e-5


SUSPECTS = "positions that continue across rows, attention across boundaries, a boundary off by one"

PACKING = Relation(
    id="R4.packing",
    name="packed-equals-padded",
    component="packing",
    statement="Packed rows have the log-probabilities and gradients of the same rows alone, next to any other rows.",
    catalogue="SB015 SB026 SB094 SB095 SB101 SB103 SB104 SB109 SB110 SB114 SB115",
    cost="CPU, seconds",
    cases=rollout_of_model,
)


def _packs_right_padded_alone(stack: Any) -> str | None:
    return None if getattr(stack, "packs_left_padded", False) else "packs_left_padded=False"


@PACKING.law("log-probabilities", SUSPECTS)
@PACKING.law(
    "log-probabilities, rows padded on both sides",
    "a row read from its first column, padding packed with it, a completion that begins after the prompt's length",
    excluded=_packs_right_padded_alone,
    padding_side="left",
)
def packed_scores_equal_scores_alone(stack: Any, case: Rollout, **padding: Any) -> Measure:
    """Compare the log-probabilities of packed rows with those of each row alone."""
    packed = stack.score_packed(case.rows, case.temperature, **padding)
    alone = [stack.score([row], case.temperature)[0] for row in case.rows]
    error, place = largest_score_difference(packed, alone)
    return Measure(
        error=error, bound=SCORE_BOUND, what=f"log-probability of a packed row against the row alone, {place}"
    )


@PACKING.law("neighbours are not seen", SUSPECTS)
def neighbours_are_not_seen(stack: Any, case: Rollout) -> Measure | None:
    """Change the content, not the length, of each row in turn: every other row keeps its log-probabilities.

    Both directions are tested, since a causal model never shows a row what follows it.
    """
    if len(case.rows) < 2:
        return None
    before = stack.score_packed(case.rows, case.temperature)
    worst = Worst(place="no row")
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
            if seen != changed:
                worst.add(error, f"row {seen} after row {changed} changed")
    return Measure(error=worst.error, bound=SCORE_BOUND, what=f"log-probability of {worst.place}")


@PACKING.law("gradient", SUSPECTS)
def packed_gradient_equals_padded(stack: Any, case: Rollout) -> Measure:
    """Compare the gradient of packed rows with that of padded ones."""
    everything = [list(range(len(case.rows)))]
    packed = stack.gradients_packed(case.rows, everything)
    padded = stack.gradients(case.rows, everything)
    error, name = largest_gradient_difference(packed.gradients, padded.gradients)
    return Measure(
        error=error,
        bound=GRADIENT_BOUND,
        what=f"gradient of {name}, packed against padded, relative difference",
    )
