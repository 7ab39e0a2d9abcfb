"""R33.compared: steps that are as their documentation defines them, and evaluations that are each of their own rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from seatrial.relations.contracts.compared import ComparedPlan, ComparedRun, DefinedStep
from seatrial.relations.law import Measure
from seatrial.relations.laws.trainer.compared import COMPARED, RELATIVE, evaluations, plan, same_gradient
from seatrial.relations.measures.compared import close, difference, digits, largest
from seatrial.relations.not_served import NotServed
from seatrial.relations.runs import compared_run

ROWS_OF_A_STEP = 4
SMALL_STEP = 0.1
"""Of the first step's largest gradient: smaller ones are compared with as much, for a loss may have settled."""


def _of(subject: str) -> Mapping[str, Any]:
    """Return what the laws of defined steps have in common: their plan, and that a subject has variations."""
    return {
        "cases": plan(num_steps=2, evaluates="trained"),
        "excluded": lambda stack: (
            None if _names(stack, subject) else f"compare_spec.defined has no {subject}"
        ),
    }


def _names(stack: Any, subject: str) -> list[str]:
    spec = stack.compare_spec
    if subject == "adapters":
        return [*spec.defined_of_adapted] if spec.adapts and spec.defined else []
    return [name for name in spec.defined if spec.subjects.get(name, "options") == subject]


@COMPARED.law(
    "defined steps",
    "another objective than the documented one, under an option; other rows, masks or divisors; a wrong metric",
    **_of("options"),
)
def defined_steps(stack: Any, case: ComparedPlan) -> Measure:
    """Compare loss, gradients and logged scalars of steps and of the first evaluation with their definition."""
    plans = {name: [replace(case, variation=name)] for name in _names(stack, "options")}
    if "" in plans:
        plans[""].append(replace(case, lengths="equal"))
    return _against_definition(stack, plans)


@COMPARED.law(
    "defined steps of other rows",
    "a part of a conversation that is left out; rewards or columns of another row",
    **_of("rows"),
)
def defined_steps_of_rows(stack: Any, case: ComparedPlan) -> Measure:
    """Compare steps on conversations of several turns and on rows of other columns with their definition."""
    return _against_definition(stack, _varied(case, _names(stack, "rows")))


@COMPARED.law(
    "defined steps of other completions",
    "completions that are cut, or that another end token ends, are masked or trained as others are",
    **_of("completions"),
)
def defined_steps_of_completions(stack: Any, case: ComparedPlan) -> Measure:
    """Compare steps on completions that do not end, or end with another token, with their definition."""
    return _against_definition(stack, _varied(case, _names(stack, "completions")))


@COMPARED.law(
    "defined steps of other models",
    "logits that are not those of the model: a scale, bound or bias of the head is left out",
    **_of("models"),
)
def defined_steps_of_models(stack: Any, case: ComparedPlan) -> Measure:
    """Compare steps of models whose logits are more than a product with the head's weight with their definition."""
    return _against_definition(stack, _varied(case, _names(stack, "models")))


@COMPARED.law(
    "defined steps of adapters",
    "a teacher or reference with the adapters of the policy, or without them where it should have some",
    **_of("adapters"),
)
def defined_steps_of_adapters(stack: Any, case: ComparedPlan) -> Measure:
    """Compare steps that train adapters with their definition."""
    names = _names(stack, "adapters")
    return _against_definition(
        stack, {name: [replace(case, variation=name, adapters=True)] for name in names}
    )


def _varied(case: ComparedPlan, names: Sequence[str]) -> dict[str, Sequence[ComparedPlan]]:
    return {name: [replace(case, variation=name)] for name in names}


@COMPARED.law(
    "defined steps, several options",
    "an option that is read only where another one has its default",
    cases=plan(num_steps=2, evaluates="trained"),
    excluded=lambda stack: None if stack.compare_spec.mixed else "compare_spec.mixed is empty",
)
def defined_steps_of_several_options(stack: Any, case: ComparedPlan) -> Measure:
    """Compare steps under several options at once with their definition."""
    return _against_definition(stack, _varied(case, stack.compare_spec.mixed))


def _against_definition(stack: Any, plans: Mapping[str, Sequence[ComparedPlan]]) -> Measure:
    """Compare runs with their definition; of a variation that is not served, none.

    Raises:
        NotServed: no variation is served.
    """
    wrong, left_out = [], []
    for name, variants in plans.items():
        given = (one if stack.compare_spec.evaluates else replace(one, evaluates="never") for one in variants)
        try:
            runs = [compared_run(stack, one) for one in given]
        except NotServed as error:
            left_out.append(str(error))
        else:
            wrong += [f"{name or 'no option'}: {one}" for run in runs for one in _unlike(stack, run)]
    if len(left_out) == len(plans):
        raise NotServed("; ".join(left_out))
    return Measure.count(wrong, "what steps do not have as defined", left_out)


def _unlike(stack: Any, run: ComparedRun) -> Iterator[str]:
    least = (
        max((largest(one.defined.gradients) for one in run.steps[:1] if one.defined), default=0.0)
        * SMALL_STEP
    )
    for number, step in enumerate(run.steps, start=1):
        defined = step.defined
        if defined is None:
            raise RuntimeError(f"step {number} has no definition")
        if not abs(step.backward - defined.loss) <= digits(defined.loss):
            yield f"loss {step.backward:.5g} for {defined.loss:.5g}"
        error, place = difference(defined.gradients, step.gradients, least)
        if not error <= RELATIVE:
            yield f"gradient of step {number}, {place}: {error:.2g}"
        yield from _scalars(step.logged, defined)
    defined = run.steps[0].defined
    evaluated = defined.evaluated if defined is not None and stack.compare_spec.evaluates_loss else None
    if run.evaluated and defined is not None and evaluated is not None:
        found = run.evaluated[0]
        kept = {name: value for name, value in evaluated.items() if name in found}
        yield from (f"evaluation {one}" for one in _scalars(found, replace(defined, scalars=kept)))


def _scalars(found: Any, defined: DefinedStep) -> Iterator[str]:
    for name, value in defined.scalars.items():
        if name not in found:
            yield f"no {name}"
        elif not close(found[name], value):
            yield f"{name} {found[name]:.5g} for {value:.5g}"


@COMPARED.law(
    "an evaluation after another",
    "sums of an evaluation that the next one adds to",
    cases=plan(num_steps=2, evaluates="held out"),
)
def evaluation_after_another(stack: Any, case: ComparedPlan) -> Measure:
    """Compare what the evaluation after two steps logs with and without one after the first step."""
    plain = evaluations(stack, replace(case, evaluated_every=2))[-1]
    other = evaluations(stack, case)[-1]
    wrong = [
        f"{name}: {other.get(name)} for {value:.5g}"
        for name, value in plain.items()
        if not (name in other and close(other[name], value))
    ]
    return Measure.count(wrong, "metrics that an earlier evaluation changes")


@COMPARED.law(
    "the evaluated rows", "an evaluation of the rows that are trained on", cases=plan(evaluates="held out")
)
def evaluated_rows(stack: Any, case: ComparedPlan) -> Measure:
    """Check that evaluations of the held-out rows and of the trained ones, after one step, log other numbers."""
    held_out = evaluations(stack, case)[-1]
    trained = evaluations(stack, replace(case, evaluates="trained"))[-1]
    alike = all(name in trained and close(value, trained[name]) for name, value in held_out.items())
    return Measure.count(["all metrics"] if alike else [], "metrics that do not depend on the rows")


@COMPARED.law(
    "rows of an epoch",
    "a step that trains on the rows of another one, or leaves rows out",
    cases=plan(num_steps=5, num_micro_batches=2, num_batches=4, lengths="equal"),
)
def rows_of_an_epoch(stack: Any, case: ComparedPlan) -> Measure:
    """Check that steps of an epoch see each row of the data set once, and the next step as many rows as they do."""
    return Measure.count(_wrong_rows(stack, case), "what is wrong with the rows of steps")


@COMPARED.law(
    "rows of an epoch, other orders",
    "an iterable data set, or one in another order, of which rows are left out or repeated",
    cases=plan(num_steps=5, num_micro_batches=2, num_batches=4, lengths="equal"),
    excluded=lambda stack: None if stack.compare_spec.orders else "compare_spec.orders is empty",
)
def rows_of_an_epoch_in_other_orders(stack: Any, case: ComparedPlan) -> Measure:
    """Check the same where the data set is iterated, and under options that give steps their rows in another way."""
    wrong, left_out = [], []
    for name, shared in stack.compare_spec.orders.items():
        try:
            found = _wrong_rows(stack, replace(case, variation=name), shared)
        except NotServed as error:
            left_out.append(str(error))
        else:
            wrong += [f"{name}: {one}" for one in found]
    if len(left_out) == len(stack.compare_spec.orders):
        raise NotServed("; ".join(left_out))
    return Measure.count(wrong, "what is wrong with the rows of steps", left_out)


def _wrong_rows(stack: Any, case: ComparedPlan, shared: int = 1) -> list[str]:
    steps = [step.rows for step in compared_run(stack, case).steps]
    number = ROWS_OF_A_STEP * case.num_batches
    seen = [
        {row for rows in steps[first : first + shared] for row in rows}
        for first in range(0, case.num_batches, shared)
    ]
    epoch = [row for rows in seen for row in rows]
    wrong = [f"row {row}: {epoch.count(row)} times" for row in range(number) if epoch.count(row) != 1]
    if shared == 1 and len(steps[-1]) != ROWS_OF_A_STEP:
        wrong.append(f"the step after the epoch sees {len(steps[-1])} rows")
    return wrong + [
        f"{len(rows)} rows of {shared} steps" for rows in seen if len(rows) != ROWS_OF_A_STEP * shared
    ]


@COMPARED.law(
    "adapters, neutral variations",
    "an option that is read only where there is a model of its own for the reference",
    cases=plan(adapters=True),
    excluded=lambda stack: (
        None if stack.compare_spec.neutral_of_adapted else "compare_spec.neutral_of_adapted is empty"
    ),
)
def neutral_variations_of_adapters(stack: Any, case: ComparedPlan) -> Measure:
    """Compare the gradient of adapters with that under each variation that should not change it."""
    if not stack.compare_spec.adapts:
        raise NotServed("compare_spec.adapts=False")
    others = [replace(case, variation=name) for name in stack.compare_spec.neutral_of_adapted]
    return same_gradient(stack, case, *others)
