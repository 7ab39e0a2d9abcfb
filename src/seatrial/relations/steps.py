"""Steps of trainers that several laws look at: one of the same examples in the same micro-batches is taken once.

A trainer of another stack takes a tenth of a second and more to be made, and half of the laws of objectives ask for the
step of one batch as a whole. Steps are shared where runs are (`runs.py`); the results of one are never changed.
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
"""Steps at most: each holds the gradients of a model, and shrinking makes hundreds of cases."""


def objective_step(
    stack: Any, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
) -> StepResult:
    """Return what `contracts.Objective.objective_step` gives."""
    key = ("objective", tuple(examples), tuple(map(tuple, micro_batches)))
    return _shared(stack, key, lambda: stack.objective_step(examples, micro_batches))


def window_step(stack: Any, case: WindowCase, num_micro_batches: int) -> StepResult:
    """Return what `contracts.RolloutWindow.window_step` gives."""
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
    """Return a step with gradients of its own: an adapter may return its model's, which the next step changes."""
    return replace(step, gradients={name: value.clone() for name, value in step.gradients.items()})
