"""R33.processes: a trainer's step on rows that two processes share is that of one process, for any objective."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seatrial.relations.contracts.compared import ComparedPlan
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.trainer.compared import (
    RELATIVE,
    evaluations,
    first_step,
    plan,
    same_gradient,
    unequal,
)
from seatrial.relations.measures.compared import difference, digits
from seatrial.relations.not_served import NotServed
from seatrial.relations.runs import compared_run

PROCESSES = Relation(
    id="R33.processes",
    name="trainers-divide-rows-between-processes",
    component="compared_trainer",
    statement="Gradients, scalars and evaluations of a step's rows in two processes are those of one process.",
    cost="CPU, a few seconds of two processes a trainer",
    cases=plan(num_ranks=2, lengths="equal"),
    seeded=False,
    thorough=True,
)


def _alone(case: ComparedPlan) -> ComparedPlan:
    return replace(case, num_ranks=1)


def _same_gradient(stack: Any, case: ComparedPlan) -> Measure:
    first_step(stack, case)  # raises NotServed where the trainer's rows are not divided
    return same_gradient(stack, _alone(case), case)


@PROCESSES.law(
    "gradient, equal lengths",
    "a sum over processes, the gradient of a process's own rows, rows that both have",
    excluded=lambda stack: "compare_spec.means='batch'" if stack.compare_spec.means == "batch" else None,
)
def gradient_of_equal_rows(stack: Any, case: ComparedPlan) -> Measure:
    """Compare the gradient of rows of equal lengths in two processes with that in one."""
    return _same_gradient(stack, case)


@PROCESSES.law(
    "gradient, unequal lengths",
    "a mean of processes' means over tokens; counts of a process's own tokens",
    cases=plan(num_ranks=2),
    excluded=lambda stack: (
        None if stack.compare_spec.means == "rows" else f"compare_spec.means={stack.compare_spec.means!r}"
    ),
)
def gradient_of_unequal_rows(stack: Any, case: ComparedPlan) -> Measure:
    """Compare the gradient of rows of unequal lengths in two processes with that in one."""
    return _same_gradient(stack, case)


@PROCESSES.law("one model", "a gradient that is not averaged, numbers drawn by each process")
def processes_have_one_model(stack: Any, case: ComparedPlan) -> Measure:
    """Compare the gradients of the first step, and the weights after it, of all processes."""
    run = compared_run(stack, case)
    if not run.others:
        raise NotServed("one process has run")
    pairs = [(run.steps[0].gradients, other.steps[0].gradients) for other in run.others]
    pairs += [(run.after, other.after) for other in run.others]
    return Measure.largest(
        (difference(one, other) for one, other in pairs), RELATIVE, "relative difference of two processes"
    )


@PROCESSES.law("the logged loss", "the loss of the first process, or a sum over processes")
def logged_loss(stack: Any, case: ComparedPlan) -> Measure | None:
    """Compare the logged loss with the mean of what the processes backpropagated."""
    run = compared_run(stack, case)
    step = first_step(stack, case)
    if "loss" not in step.logged:
        return None
    parts = [one.steps[0].backward for one in (run, *run.others)]
    mean = sum(parts) / len(parts)
    return Measure(
        error=abs(step.logged["loss"] - mean),
        bound=digits(mean),
        what=f"logged loss {step.logged['loss']:.6g} against a mean of {mean:.6g} of {len(parts)} processes",
    )


@PROCESSES.law("logged scalars, equal lengths", "a scalar of the first process alone, or their sum")
def logged_scalars(stack: Any, case: ComparedPlan) -> Measure:
    """Compare what a step in two processes logs with what it logs in one."""
    one, other = (first_step(stack, one).logged for one in (_alone(case), case))
    if not one:
        raise NotServed("nothing is logged under the step's number")
    return Measure.count_of_each(unequal(stack, one, other), "scalars that a second process changes")


@PROCESSES.law(
    "evaluation, equal lengths",
    "metrics of the first process alone, or their sum",
    cases=plan(num_ranks=2, lengths="equal", evaluates="held out"),
)
def evaluation(stack: Any, case: ComparedPlan) -> Measure:
    """Compare what an evaluation in two processes logs with what it logs in one."""
    # Before each evaluation there is a step, which is compared above.
    one, other = (evaluations(stack, one)[-1] for one in (_alone(case), case))
    return Measure.count_of_each(unequal(stack, one, other), "metrics that a second process changes")
