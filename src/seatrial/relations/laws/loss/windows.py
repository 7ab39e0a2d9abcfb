"""R1 and R12 of rollout windows: the gradient of a step against the oracle, whole and in micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seatrial.relations.cases.windows import WindowCase, make_window
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.laws.loss.objectives import ACCUMULATION, GRADIENT_BOUND
from seatrial.relations.oracles import windows as window_oracles
from seatrial.relations.steps import window_step
from seatrial.relations.tensors import largest_gradient_difference


def _make(**trap: Any) -> Callable[[Any, int, bool], WindowCase]:
    def make(stack: Any, seed: int, tidy: bool) -> WindowCase:
        chosen = {} if tidy else trap
        return make_window(seed, ordinary_ids=stack.ordinary_ids, eos_id=stack.eos_id, **chosen)

    return make


def _gradient_equals_oracle(stack: Any, case: WindowCase) -> Measure:
    oracle = window_oracles.window(stack, case)
    error, name = largest_gradient_difference(window_step(stack, case, 1).gradients, oracle.gradients)
    return Measure(
        error=error,
        bound=GRADIENT_BOUND,
        what=f"gradient of {name} against the oracle for {stack.window_spec}, relative difference",
    )


def _gradients_add_up(stack: Any, case: WindowCase) -> Measure | None:
    if len(case.rows) < 2 * case.num_generations:
        return None
    together = window_step(stack, case, 1).gradients
    error, name = largest_gradient_difference(window_step(stack, case, 2).gradients, together)
    return Measure(
        error=error,
        bound=GRADIENT_BOUND,
        what=f"gradient of {name}, in two micro-batches, relative difference",
    )


RELATIONS = (
    Relation(
        id="R1.window",
        name="window-ignores-micro-batches",
        component="rollout_window",
        statement="The raw gradient of a window of rollouts is the same in one micro-batch and in two.",
        catalogue=("SB155", "SB157", "SB158", "SB182", "SB185", "SB199"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="gradients add up, lengths equal",
                make=_make(),
                measure=_gradients_add_up,
                suspects=ACCUMULATION,
            ),
            Law(
                name="gradients add up, lengths unequal",
                make=_make(lengths="unequal"),
                measure=_gradients_add_up,
                suspects=ACCUMULATION,
            ),
        ),
    ),
    Relation(
        id="R12.window",
        name="window-equals-oracle",
        component="rollout_window",
        statement="The gradient of a window equals the float64 oracle of its completions, rewards and temperature.",
        catalogue=("SB068", "SB082", "SB083", "SB119", "SB123", "SB127", "SB155", "SB166", "SB194"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="gradient, lengths equal",
                make=_make(),
                measure=_gradient_equals_oracle,
                suspects="advantages of another row, a group by position, a scale of the loss",
            ),
            Law(
                name="gradient, lengths unequal",
                make=_make(lengths="unequal"),
                measure=_gradient_equals_oracle,
                suspects="a mean over each row's own tokens where one over all tokens is due, or the reverse",
            ),
            Law(
                name="gradient, temperature not 1",
                make=_make(temperature=0.5),
                measure=_gradient_equals_oracle,
                suspects="logits that are sampled at a temperature and scored without it",
            ),
            Law(
                name="gradient, completions without a reward",
                make=_make(unscored=True),
                measure=_gradient_equals_oracle,
                suspects="a missing reward counted as 0, in the baseline and as an advantage",
            ),
            Law(
                name="gradient, truncated completions left out",
                make=_make(truncated=True, lengths="unequal"),
                measure=_gradient_equals_oracle,
                suspects="rows masked in the sum and still counted in its divisor",
            ),
        ),
    ),
)
