"""R33.compared: runs of a trainer that should be one run are one, for any objective."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch

from seatrial.relations.contracts.compared import ComparedPlan, ComparedRun, ComparedStep
from seatrial.relations.law import Measure, Relation
from seatrial.relations.measures.compared import close, difference, digits
from seatrial.relations.not_served import NotServed
from seatrial.relations.runs import compared_run

RELATIVE = 5e-4
"""Of the largest entry of a gradient: float32 sums in another order."""
VISIBLE = 2e-3
"""Smallest relative change of a gradient that an effective option makes."""


def plan(**fields: Any) -> Callable[[Any, int, bool], ComparedPlan]:
    """Return a law's `cases`."""
    return lambda stack, seed, tidy: ComparedPlan(seed=seed, **fields)


COMPARED = Relation(
    id="R33.compared",
    name="trainers-compare-with-themselves",
    component="compared_trainer",
    statement="Micro-batches, neutral options, forms of arguments, evaluations and resumes leave a trainer's gradients "
    "as they are; it trains what it should, and nothing else.",
    cost="CPU, a quarter of a second a run",
    cases=plan(),
    seeded=False,
)


def first_step(stack: Any, case: ComparedPlan) -> ComparedStep:
    run = compared_run(stack, case)
    if not run.steps:
        raise RuntimeError("the trainer took no optimizer step")
    return run.steps[0]


def _served(stack: Any, case: ComparedPlan) -> ComparedStep | None:
    """Return the first step; None where the stack does not serve the plan."""
    try:
        return first_step(stack, case)
    except NotServed:
        return None


def same_gradient(stack: Any, case: ComparedPlan, *others: ComparedPlan) -> Measure:
    base = first_step(stack, case).gradients
    found = [
        (*difference(base, step.gradients), other)
        for other in others
        if (step := _served(stack, other)) is not None
    ]
    return Measure.largest(
        ((error, f"{place}, {other.num_micro_batches} micro-batches") for error, place, other in found),
        RELATIVE,
        "relative difference of the gradients",
    )


def _divided(case: ComparedPlan) -> tuple[ComparedPlan, ComparedPlan]:
    return replace(case, num_micro_batches=2), replace(case, num_micro_batches=4)


@COMPARED.law(
    "micro-batches, equal lengths",
    "a loss that is not divided by the number of micro-batches, or is twice",
    cases=plan(lengths="equal"),
    excluded=lambda stack: "compare_spec.means='batch'" if stack.compare_spec.means == "batch" else None,
)
def micro_batches_of_equal_rows(stack: Any, case: ComparedPlan) -> Measure:
    """Compare the gradient of one batch with that of two and four micro-batches."""
    return same_gradient(stack, case, *_divided(case))


@COMPARED.law(
    "micro-batches, unequal lengths",
    "a mean of micro-batches' means over tokens; padding that a shorter row does not ignore",
    excluded=lambda stack: (
        None if stack.compare_spec.means == "rows" else f"compare_spec.means={stack.compare_spec.means!r}"
    ),
)
def micro_batches(stack: Any, case: ComparedPlan) -> Measure:
    """Compare the gradient of one batch, where shorter rows have padding, with that of micro-batches."""
    return same_gradient(stack, case, *_divided(case))


@COMPARED.law("neutral variations", "an option or a form of an argument that changes what it should not")
def neutral_variations(stack: Any, case: ComparedPlan) -> Measure:
    """Compare the gradient of the run with that of each variation that should not change it."""
    wrong, found = [], 0
    for name, other in stack.compare_spec.neutral.items():
        if (step := _served(stack, replace(case, variation=name))) is None:
            continue
        found += 1
        base = first_step(stack, replace(case, variation=other))
        error, place = difference(base.gradients, step.gradients)
        if not error <= RELATIVE:
            wrong.append(f"{name}: {error:.2g} at {place}")
    if not found:
        raise NotServed("no variation is served")
    return Measure.count(wrong, "variations with another gradient")


@COMPARED.law(
    "effective options",
    "an option that nothing reads",
    cases=plan(num_steps=2),
    excluded=lambda stack: None if stack.compare_spec.effective else "compare_spec.effective is empty",
)
def effective_options(stack: Any, case: ComparedPlan) -> Measure:
    """Compare the gradients of two steps with and without each option, and under any two of them."""
    runs = {"no option": compared_run(stack, case).steps}
    for name in stack.compare_spec.effective:
        runs[name] = compared_run(stack, replace(case, variation=name)).steps
    wrong = [f"{one} as {other}" for one, other in combinations(runs, 2) if _alike(runs[one], runs[other])]
    return Measure.count(wrong, "options that give the gradients of others")


def _alike(one: Sequence[ComparedStep], other: Sequence[ComparedStep]) -> bool:
    return all(
        difference(left.gradients, right.gradients)[0] <= VISIBLE
        for left, right in zip(one, other, strict=True)
    )


@COMPARED.law(
    "every weight is trained",
    "a part left out of the optimizer, or cut off from the loss",
    cases=plan(num_steps=2),
)
def every_weight_moves(stack: Any, case: ComparedPlan) -> Measure:
    """Check that each trainable tensor has other values after two steps, and no NaN."""
    run = compared_run(stack, case)
    wrong = [
        name
        for name, value in run.before.items()
        if torch.equal(value, run.after[name]) or not torch.isfinite(run.after[name]).all()
    ]
    return Measure.count(
        wrong if run.before else ["nothing is trainable"], "trainable tensors that two steps leave"
    )


@COMPARED.law(
    "other models stay",
    "a reference, teacher or reward model in the optimizer, or one that shares the policy's tensors",
    cases=plan(num_steps=2),
)
def other_models_stay(stack: Any, case: ComparedPlan) -> Measure | None:
    """Check that references, teachers and frozen tensors have the same values after two steps."""
    run = compared_run(stack, case)
    if not run.fixed_before:
        return None
    wrong = [
        name
        for name, value in run.fixed_before.items()
        if name not in run.fixed_after or not torch.equal(value, run.fixed_after[name])
    ]
    return Measure.count(wrong, "tensors of other models that two steps change")


@COMPARED.law(
    "the logged loss", "a loss that is logged before or after its division", cases=plan(num_micro_batches=2)
)
def logged_loss(stack: Any, case: ComparedPlan) -> Measure | None:
    """Compare the logged loss with the sum of what was backpropagated in the step."""
    step = first_step(stack, case)
    if "loss" not in step.logged:
        return None
    return Measure(
        error=abs(step.logged["loss"] - step.backward),
        bound=digits(step.backward),
        what=f"logged loss {step.logged['loss']:.6g} against {step.backward:.6g} that was backpropagated",
    )


@COMPARED.law(
    "the logged loss of two steps",
    "a sum in place of a mean, or a step that is left out",
    cases=plan(num_steps=2, logged_every=2),
)
def logged_loss_of_two_steps(stack: Any, case: ComparedPlan) -> Measure | None:
    """Compare the loss that is logged every second step with the mean of what was backpropagated in both."""
    steps = compared_run(stack, case).steps
    if "loss" not in steps[-1].logged:
        return None
    mean = sum(step.backward for step in steps) / len(steps)
    return Measure(
        error=abs(steps[-1].logged["loss"] - mean),
        bound=digits(mean),
        what=f"logged loss {steps[-1].logged['loss']:.6g} against a mean of {mean:.6g}",
    )


def unequal(stack: Any, one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, list[str]]:
    """Return the scalars that are means of rows, each with both values where they differ."""
    mixed = re.compile(stack.compare_spec.mixed_scalars or "^$")
    return {
        name: [] if close(one[name], other[name]) else [f"{name}: {one[name]:.5g}, {other[name]:.5g}"]
        for name in sorted(one.keys() & other.keys())
        if not mixed.search(name)
    }


@COMPARED.law(
    "logged scalars, equal lengths",
    "a scalar of the last micro-batch alone, or their sum",
    cases=plan(lengths="equal"),
)
def logged_scalars(stack: Any, case: ComparedPlan) -> Measure:
    """Compare what a step logs as one batch and as two micro-batches."""
    one, other = (first_step(stack, replace(case, num_micro_batches=parts)).logged for parts in (1, 2))
    if not one:
        raise NotServed("nothing is logged under the step's number")
    return Measure.count_of_each(unequal(stack, one, other), "scalars that micro-batches change")


@COMPARED.law(
    "batches of an evaluation, equal lengths",
    "a metric of the last batch alone, or their sum",
    cases=plan(lengths="equal", evaluates="held out"),
)
def batches_of_an_evaluation(stack: Any, case: ComparedPlan) -> Measure:
    """Compare what an evaluation logs for one batch and for two."""
    one, other = (evaluations(stack, replace(case, num_evaluation_parts=parts))[-1] for parts in (1, 2))
    return Measure.count_of_each(unequal(stack, one, other), "metrics that smaller batches change")


@COMPARED.law(
    "evaluation of the trained rows",
    "another loss in evaluation mode, or other rows",
    cases=plan(evaluates="trained"),
)
def evaluation_of_trained_rows(stack: Any, case: ComparedPlan) -> Measure | None:
    """Compare the loss of an evaluation before the first step with that of the first step, on the same rows."""
    if not stack.compare_spec.evaluates_loss:
        raise NotServed("compare_spec.evaluates_loss=False")
    evaluated = evaluations(stack, case)[0]
    step = first_step(stack, case)
    if "loss" not in evaluated:
        return None
    return Measure(
        error=abs(evaluated["loss"] - step.backward),
        bound=digits(step.backward),
        what=f"evaluation loss {evaluated['loss']:.6g} against {step.backward:.6g} of the first step",
    )


def evaluations(stack: Any, case: ComparedPlan) -> Sequence[Mapping[str, float]]:
    if not stack.compare_spec.evaluates:
        raise NotServed("compare_spec.evaluates=False")
    found = compared_run(stack, case).evaluated
    if not found:
        raise NotServed("no evaluation is logged")
    return found


@COMPARED.law(
    "adapters",
    "base weights in the optimizer, or adapters that the loss does not reach",
    cases=plan(num_steps=2, adapters=True),
)
def adapters_alone_are_trained(stack: Any, case: ComparedPlan) -> Measure:
    """Check that adapters that the trainer adds are trained, all of them and nothing else."""
    if not stack.compare_spec.adapts:
        raise NotServed("compare_spec.adapts=False")
    run = compared_run(stack, case)
    wrong = [
        f"{name} is trained" for name in run.before if "lora_" not in name and "modules_to_save" not in name
    ]
    wrong += [f"{name} stays" for name, value in run.before.items() if torch.equal(value, run.after[name])]
    wrong += [
        f"{name} changes"
        for name, value in run.fixed_before.items()
        if not torch.equal(value, run.fixed_after[name])
    ]
    return Measure.count(wrong if run.before else ["nothing is trainable"], "what is wrong")


@COMPARED.law(
    "adapters, micro-batches",
    "a reference that is the policy with its adapters",
    cases=plan(lengths="equal", adapters=True),
)
def adapters_in_micro_batches(stack: Any, case: ComparedPlan) -> Measure:
    """Compare the gradient of adapters of one batch with that of two micro-batches."""
    if not stack.compare_spec.adapts or stack.compare_spec.means == "batch":
        raise NotServed("compare_spec.adapts=False, or rows of a micro-batch are compared with one another")
    return same_gradient(stack, case, replace(case, num_micro_batches=2))


def _same_run(one: ComparedRun, other: ComparedRun, *, logged: bool) -> Measure:
    """Compare all gradients of two runs, the last weights, and scalars that both log."""
    wrong = []
    if len(one.steps) != len(other.steps) or one.num_steps != other.num_steps:
        wrong.append(f"{len(one.steps)} and {len(other.steps)} steps")
    for number, (left, right) in enumerate(zip(one.steps, other.steps, strict=False), start=1):
        error, place = difference(left.gradients, right.gradients)
        if not error <= RELATIVE:
            wrong.append(f"gradient of step {number}, {place}: {error:.2g}")
        for name in left.logged.keys() & right.logged.keys() if logged else ():
            if not close(left.logged[name], right.logged[name]):
                wrong.append(f"{name} of step {number}: {left.logged[name]:.5g}, {right.logged[name]:.5g}")
    error, place = difference(one.after, other.after)
    if not error <= RELATIVE:
        wrong.append(f"{place} at the end: {error:.2g}")
    return Measure.count(wrong, "what differs")


def _evaluated(stack: Any, seed: int, tidy: bool) -> ComparedPlan:
    """Return a plan in which it does not matter which rows share a micro-batch, which is drawn at random."""
    lengths: Any = "equal" if stack.compare_spec.means == "tokens" else "unequal"
    return ComparedPlan(seed=seed, num_steps=3, num_micro_batches=2, lengths=lengths)


@COMPARED.law("evaluation", "state that training and evaluation share", cases=_evaluated)
def evaluation_changes_nothing(stack: Any, case: ComparedPlan) -> Measure:
    """Compare a run with one that evaluates after every step."""
    if not stack.compare_spec.evaluates:
        raise NotServed("compare_spec.evaluates=False")
    other = compared_run(stack, replace(case, evaluates="held out"))
    return _same_run(compared_run(stack, case), other, logged=True)


@COMPARED.law(
    "resumed", "state that no checkpoint has", cases=plan(num_steps=3, num_micro_batches=2, lengths="equal")
)
def resumed_run_is_the_unbroken_one(stack: Any, case: ComparedPlan) -> Measure:
    """Compare a run with one that is stopped after its first step and resumed."""
    if not stack.compare_spec.resumes:
        raise NotServed("compare_spec.resumes=False")
    other = compared_run(stack, replace(case, ends_after=1))
    return _same_run(compared_run(stack, case), other, logged=False)


@COMPARED.law(
    "the process's random numbers",
    "numbers drawn before the seed is set",
    cases=plan(num_steps=2, num_micro_batches=2),
)
@COMPARED.law(
    "the process's random numbers, an adapter that is made",
    "an adapter that is made before the seed is set",
    cases=plan(num_steps=2, adapters=True),
)
def one_seed_is_one_run(stack: Any, case: ComparedPlan) -> Measure:
    """Compare runs with one seed in processes that drew other numbers before."""
    if case.adapters and not stack.compare_spec.adapts:
        raise NotServed("compare_spec.adapts=False")
    other = compared_run(stack, replace(case, process_seed=1))
    return _same_run(compared_run(stack, case), other, logged=True)


@COMPARED.law(
    "a second trainer of the same arguments",
    "a configuration, data set or tokenizer that a trainer changes",
    cases=plan(num_steps=2),
)
def second_trainer(stack: Any, case: ComparedPlan) -> Measure:
    """Compare a run with one whose configuration, data sets and tokenizer an earlier trainer was given."""
    other = compared_run(stack, replace(case, repeats=True))
    first = compared_run(stack, case)
    return _same_run(first, replace(other, steps=other.steps[-len(first.steps) :]), logged=True)


@COMPARED.law(
    "the caller's arguments", "rows or options that a trainer changes in place", cases=plan(num_steps=2)
)
def arguments_stay(stack: Any, case: ComparedPlan) -> Measure:
    """Check that rows of the data sets, and lists and dictionaries of the configuration, stay as they are."""
    return Measure.count(list(compared_run(stack, case).changed), "what the trainer changes")
