"""R33.adapter_kinds: a trainer trains adapters of every kind, and nothing else, and computes with them as without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from seatrial.relations.contracts.compared import ComparedPlan, ComparedRun
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.trainer.compared import RELATIVE, plan
from seatrial.relations.measures.compared import close, difference
from seatrial.relations.not_served import NotServed
from seatrial.relations.runs import compared_run

ADAPTER_KINDS = Relation(
    id="R33.adapter_kinds",
    name="trainers-train-adapters-of-every-kind",
    component="compared_trainer",
    statement="Adapters that begin as nothing leave the first step's numbers; micro-batches leave gradients; "
    "they are all that is trained.",
    cost="CPU, a quarter of a second a run",
    cases=plan(adapters=True, lengths="equal"),
    seeded=False,
    thorough=True,
)
OF_WEIGHTS = ("grad_norm", "learning_rate")
"""Scalars that depend on which weights are trained."""


def _runs(stack: Any, case: ComparedPlan, kinds: Sequence[str]) -> Iterator[tuple[str, ComparedRun]]:
    """Yield a run with each kind of adapter that the trainer takes.

    Raises:
        NotServed: it takes none of them.
    """
    if not stack.compare_spec.adapts:
        raise NotServed("compare_spec.adapts=False")
    found, reason = 0, None
    for kind in kinds:
        try:
            run = compared_run(stack, replace(case, adapter_kind=kind))
        except NotServed as refused:
            reason = refused
            continue
        found += 1
        yield kind, run
    if not found:
        raise reason or NotServed("no kind of adapter is named")


def _kinds(stack: Any) -> Sequence[str]:
    return (*stack.compare_spec.neutral_adapters, *stack.compare_spec.other_adapters)


@ADAPTER_KINDS.law(
    "adapters that begin as nothing",
    "a reference with the adapters of the policy, a head or a loss of its own for adapted models",
)
def new_adapters_change_nothing(stack: Any, case: ComparedPlan) -> Measure:
    """Compare loss and logged scalars of the first step with those of a run without adapters."""
    plain = compared_run(stack, replace(case, adapters=False, adapter_kind="none")).steps[0]
    wrong = []
    for kind, run in _runs(stack, case, stack.compare_spec.neutral_adapters):
        step = run.steps[0]
        values = {"loss": (step.backward, plain.backward)}
        values |= {
            name: (step.logged[name], plain.logged[name]) for name in step.logged.keys() & plain.logged.keys()
        }
        wrong += [
            f"{kind}, {name}: {one:.5g}, {other:.5g}"
            for name, (one, other) in sorted(values.items())
            if name not in OF_WEIGHTS and not close(one, other)
        ]
        wrong += [
            f"{kind}: {name} is not logged" for name in sorted(plain.logged.keys() - step.logged.keys())
        ]
    return Measure.count(wrong, "numbers of a first step that new adapters change")


@ADAPTER_KINDS.law(
    "adapters of every kind are trained",
    "virtual tokens or scales left out of the optimizer",
    cases=plan(num_steps=2, adapters=True),
)
def adapters_of_every_kind_train(stack: Any, case: ComparedPlan) -> Measure:
    """Check that each trainable tensor moves in two steps, and that no other one does.

    An adapter that begins as nothing may begin where the loss has no gradient: a policy that equals its reference, with
    rewards of equal completions. Then each tensor has a gradient, and all are zero.
    """
    wrong = []
    for kind, run in _runs(stack, case, _kinds(stack)):
        wrong += [
            f"{kind}: {name} stays"
            for name, value in run.before.items()
            if torch.equal(value, run.after[name]) and not _is_flat(run)
        ]
        wrong += [
            f"{kind}: {name} changes"
            for name, value in run.fixed_before.items()
            if name not in run.fixed_after or not torch.equal(value, run.fixed_after[name])
        ]
        wrong += [] if run.before else [f"{kind}: nothing is trainable"]
    return Measure.count(wrong, "tensors that are trained otherwise")


def _is_flat(run: ComparedRun) -> bool:
    """Return whether every trainable tensor has a gradient in each step, and all of them are zero."""
    return all(
        name in step.gradients and not bool(step.gradients[name].any())
        for step in run.steps
        for name in run.before
    )


@ADAPTER_KINDS.law(
    "adapters of every kind, micro-batches", "a mask or labels without the virtual tokens' places"
)
def adapters_of_every_kind_in_micro_batches(stack: Any, case: ComparedPlan) -> Measure:
    """Compare the gradients of one batch with those of two micro-batches."""
    if stack.compare_spec.means == "batch":
        raise NotServed("compare_spec.means='batch'")
    wrong = []
    for kind, run in _runs(stack, case, stack.compare_spec.other_adapters):
        other = compared_run(stack, replace(case, adapter_kind=kind, num_micro_batches=2))
        error, place = difference(run.steps[0].gradients, other.steps[0].gradients)
        wrong += [] if error <= RELATIVE else [f"{kind}: {error:.2g} at {place}"]
    return Measure.count(wrong, "kinds of adapters whose gradients micro-batches change")
