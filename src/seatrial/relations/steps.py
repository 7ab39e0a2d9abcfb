"""Training steps that laws share: the step of the same examples in the same micro-batches is taken once.

Building a trainer takes a tenth of a second or more, and half of the laws of objectives need the step of the same whole
batch. Steps are shared as runs are (`runs.py`); their results are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from seatrial.relations.cases.examples import Example
from seatrial.relations.cases.windows import WindowCase
from seatrial.relations.records import StepResult
from seatrial.relations.runs import sharing_runs

MAX_KEPT = 16
"""Each step keeps the gradients of a model, and shrinking makes hundreds of cases."""


def objective_step(
    stack: Any, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
) -> StepResult:
    """Return the result of `contracts.Objective.objective_step`."""
    key = ("objective", tuple(examples), tuple(map(tuple, micro_batches)))
    return _shared(stack, key, lambda: stack.objective_step(examples, micro_batches))


def window_step(stack: Any, case: WindowCase, num_micro_batches: int) -> StepResult:
    """Return the result of `contracts.RolloutWindow.window_step`."""
    return _shared(
        stack, ("window", case, num_micro_batches), lambda: stack.window_step(case, num_micro_batches)
    )


def _shared(stack: Any, key: Hashable, take: Callable[[], StepResult]) -> StepResult:
    with sharing_runs() as cache:
        cache.keep(stack)
        whole = (id(stack), key)
        if whole not in cache.steps:
            cache.steps[whole] = _copied(take())
        cache.steps.move_to_end(whole)
        while len(cache.steps) > MAX_KEPT:
            cache.steps.popitem(last=False)
        step: StepResult = cache.steps[whole]
        return step


def _copied(step: StepResult) -> StepResult:
    """Return a step with copied gradients: an adapter may return its model's, which the next step changes."""
    return replace(step, gradients={name: value.clone() for name, value in step.gradients.items()})
