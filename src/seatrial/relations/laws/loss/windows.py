"""R1 and R12 of rollout windows: the gradient of a step against the oracle, whole and in micro-batches."""

from __future__ import annotations

from functools import partial
from typing import Any

from seatrial.relations.cases.windows import WindowCase, make_window
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.loss.objectives import ACCUMULATION, GRADIENT_BOUND
from seatrial.relations.oracles import windows as window_oracles
from seatrial.relations.steps import window_step
from seatrial.relations.tensors import largest_gradient_difference


def _windows(stack: Any, seed: int, tidy: bool, **traps: Any) -> WindowCase:
    return make_window(seed, ordinary_ids=stack.ordinary_ids, eos_id=stack.eos_id, **({} if tidy else traps))


MICRO_BATCHES = Relation(
    id="R1.window",
    name="window-ignores-micro-batches",
    component="rollout_window",
    statement="The raw gradient of a window of rollouts is the same in one micro-batch and in two.",
    catalogue="SB155 SB157 SB158 SB182 SB185 SB199",
    cost="CPU, seconds",
)

FORMULA = Relation(
    id="R12.window",
    name="window-equals-oracle",
    component="rollout_window",
    statement="The gradient of a window equals the float64 oracle of its completions, rewards and temperature.",
    catalogue="SB068 SB082 SB083 SB119 SB123 SB127 SB155 SB166 SB194",
    cost="CPU, seconds",
)


@MICRO_BATCHES.law("gradients add up, lengths equal", ACCUMULATION, cases=_windows)
@MICRO_BATCHES.law(
    "gradients add up, lengths unequal", ACCUMULATION, cases=partial(_windows, lengths="unequal")
)
def gradients_add_up(stack: Any, case: WindowCase) -> Measure | None:
    """Compare the window's gradient in two micro-batches with that in one."""
    if len(case.rows) < 2 * case.num_generations:
        return None
    together = window_step(stack, case, 1).gradients
    error, name = largest_gradient_difference(window_step(stack, case, 2).gradients, together)
    return Measure(
        error=error,
        bound=GRADIENT_BOUND,
        what=f"gradient of {name}, in two micro-batches, relative difference",
    )


@FORMULA.law(
    "gradient, lengths equal",
    "advantages of another row, a group by position, a scale of the loss",
    cases=_windows,
)
@FORMULA.law(
    "gradient, lengths unequal",
    "a mean over each row's own tokens where one over all tokens is due, or the reverse",
    cases=partial(_windows, lengths="unequal"),
)
@FORMULA.law(
    "gradient, prompts of unequal lengths",
    "padding of a shorter prompt that is attended to or counted in positions",
    cases=partial(_windows, prompts="unequal"),
)
@FORMULA.law(
    "gradient, temperature not 1",
    "logits that are sampled at a temperature and scored without it",
    cases=partial(_windows, temperature=0.5),
)
@FORMULA.law(
    "gradient, completions without a reward",
    "a missing reward counted as 0, in the baseline and as an advantage",
    cases=partial(_windows, unscored=True),
)
@FORMULA.law(
    "gradient, truncated completions left out",
    "rows masked in the sum and still counted in its divisor",
    cases=partial(_windows, truncated=True, lengths="unequal"),
)
def gradient_equals_oracle(stack: Any, case: WindowCase) -> Measure:
    """Compare the window's gradient with the float64 oracle."""
    oracle = window_oracles.window(stack, case)
    error, name = largest_gradient_difference(window_step(stack, case, 1).gradients, oracle.gradients)
    return Measure(
        error=error,
        bound=GRADIENT_BOUND,
        what=f"gradient of {name} against the oracle for {stack.window_spec}, relative difference",
    )
