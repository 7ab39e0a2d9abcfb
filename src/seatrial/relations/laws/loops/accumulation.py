"""R30.accumulated: steps of accumulated micro-batches are those of plain gradient descent on their rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from seatrial.relations.contracts.loops import AccumulatedBatch, AccumulationPlan
from seatrial.relations.law import Measure, Relation
from seatrial.relations.oracles.loops import descent, local_descent
from seatrial.relations.worst import relative_error

BOUND = 1e-5
"""Float32 over a few steps."""
HALF = 2e-2
"""A forward pass in bfloat16, over a few steps."""


def plan(**options: Any) -> Callable[[Any, int, bool], AccumulationPlan]:
    """Return a function that makes the plan with these options; when tidy, steps are whole at the end of an epoch."""

    def made(stack: Any, seed: int, tidy: bool) -> AccumulationPlan:
        given = AccumulationPlan(seed=seed, **options)
        return replace(given, num_batches=4) if tidy else given

    return made


ACCUMULATED = Relation(
    id="R30.accumulated",
    name="accumulated-steps-are-descent",
    component="accumulated_training",
    statement="A step is taken after as many micro-batches as planned and at the end of an epoch; its gradient is "
    "their sum over the number planned, averaged over processes and clipped; the schedule follows.",
    cost="CPU, processes of one gloo group that are started once",
    cases=plan(),
)


def due(case: AccumulationPlan) -> list[bool]:
    """Return for each micro-batch of all epochs whether it ends a step."""
    ends, since = [], 0
    for _ in range(case.num_epochs):
        for number in range(case.num_batches):
            since += 1
            ends.append(
                since == case.accumulation or (case.steps_at_the_end and number == case.num_batches - 1)
            )
            since = 0 if ends[-1] else since
    return ends


@ACCUMULATED.law(
    "when steps are taken", "a counter that the end of an epoch does not reset, a last step that is left out"
)
@ACCUMULATED.law(
    "when steps are taken, over the ends of epochs",
    "an end of an epoch that takes a step",
    cases=plan(steps_at_the_end=False),
)
@ACCUMULATED.law(
    "when steps are taken, one process",
    "an end of an epoch that is not seen",
    cases=plan(num_ranks=1, accumulation=3),
)
@ACCUMULATED.law(
    "when steps are taken, gradients exchanged each time",
    "an exchange of gradients that takes a step",
    cases=plan(exchanges_each=True),
)
def steps_are_taken_when_due(stack: Any, case: AccumulationPlan) -> Measure:
    """Compare which micro-batches end a step with the plan, on every process."""
    right = due(case)
    wrong = [
        f"process {number}: {[one.stepped for one in batches]}, due {right}"
        for number, batches in enumerate(stack.accumulated(case))
        if [one.stepped for one in batches] != right
    ]
    return Measure.count(wrong, "processes that step at other micro-batches")


SCALED = "another divisor in the last step, a sum over processes for their mean, the last micro-batch alone"


@ACCUMULATED.law("weights", SCALED)
@ACCUMULATED.law("weights, one process", SCALED, cases=plan(num_ranks=1, accumulation=3))
@ACCUMULATED.law("weights, without accumulation", SCALED, cases=plan(accumulation=1))
@ACCUMULATED.law("weights, over the ends of epochs", SCALED, cases=plan(steps_at_the_end=False))
@ACCUMULATED.law(
    "weights, clipped",
    "a norm of one process or micro-batch, clipping before the last gradient",
    cases=plan(max_norm=0.5),
)
@ACCUMULATED.law(
    "weights, elements clipped",
    "clipping before the last gradient, or of one process",
    cases=plan(max_value=0.2),
)
@ACCUMULATED.law("weights, gradients exchanged each time", SCALED, cases=plan(exchanges_each=True))
@ACCUMULATED.law("weights, split batches", SCALED, cases=plan(split=True))
@ACCUMULATED.law("weights, a schedule of epochs", SCALED, cases=plan(schedule="epoch"))
@ACCUMULATED.law("weights, forward pass in bfloat16", SCALED, cases=plan(mixed=True), bound=HALF)
@ACCUMULATED.law(
    "weights, resumed",
    "a schedule or an optimizer that restarts, weights of another process",
    cases=plan(resumes_after=2),
)
def weights_are_those_of_descent(stack: Any, case: AccumulationPlan, bound: float = BOUND) -> Measure:
    """Compare the weights after every micro-batch with those of float64 descent on the same rows."""
    ranks = stack.accumulated(case)
    right = descent(stack.accumulation_spec, case, _steps(ranks))
    found = []
    for number, batches in enumerate(ranks):
        stepped = [one for one in batches if one.stepped]
        for step, (one, other) in enumerate(zip(stepped, right, strict=True)):
            errors = [
                relative_error(a, float(b), 1e-1) for a, b in zip(one.weights, other.weights, strict=True)
            ]
            found.append((max(errors), f"step {step + 1} of process {number}"))
    return Measure.largest(found, bound, "weights against float64 descent, relative difference")


@ACCUMULATED.law(
    "weights, steps of each process alone",
    "weights that are averaged after other steps, or not at the end; gradients that are averaged as well",
    cases=plan(local_steps=2, accumulation=1),
)
def local_weights_are_averaged(stack: Any, case: AccumulationPlan) -> Measure:
    """Compare the weights of each process after every step with float64 descent on its own rows, and means of them."""
    ranks = stack.accumulated(case)
    ends = [[one for one in batches if one.rows] for batches in ranks]
    steps = [[one.rows for one in step] for step in zip(*ends, strict=True)]
    right = local_descent(stack.accumulation_spec, case, steps)
    found = []
    for number, batches in enumerate(ranks):
        due = [step[number] for step in right]
        if not batches[-1].rows:  # after the loop
            due.append(torch.stack(right[-1]).mean(0))
        for step, (one, other) in enumerate(zip(batches, due, strict=True), start=1):
            errors = [relative_error(a, float(b), 1e-1) for a, b in zip(one.weights, other, strict=True)]
            found.append((max(errors), f"step {step} of process {number}"))
    return Measure.largest(
        found, BOUND, "weights of each process against float64 descent, relative difference"
    )


@ACCUMULATED.law(
    "weights, a last batch of one process",
    "a process without a batch that is waited for, a mean over those that have one, weights that end apart",
    cases=plan(uneven=True, accumulation=1, num_epochs=1),
)
def uneven_ends_are_joined(stack: Any, case: AccumulationPlan) -> Measure:
    """Compare the first process's steps with float64 descent, in which others skip the last; all end alike."""
    ranks = stack.accumulated(case)
    batches = [[one for one in own if one.rows] for own in ranks]
    right = descent(stack.accumulation_spec, case, _steps(batches))
    pairs = [
        (one.weights, other.weights, f"step {step + 1} of the first process")
        for step, (one, other) in enumerate(zip(batches[0], right, strict=True))
    ]
    pairs += [
        (own[-1].weights, right[-1].weights, f"process {number} after the loop")
        for number, own in enumerate(ranks)
    ]
    found = [
        (max(relative_error(a, float(b), 1e-1) for a, b in zip(one, other, strict=True)), place)
        for one, other, place in pairs
    ]
    return Measure.largest(found, BOUND, "weights against float64 descent, relative difference")


@ACCUMULATED.law("weights between steps", "a step for every micro-batch")
def weights_stay_between_steps(stack: Any, case: AccumulationPlan) -> Measure:
    """Check that weights change with a micro-batch that ends a step, and with no other."""
    wrong = []
    for number, batches in enumerate(stack.accumulated(case)):
        for before, after in itertools.pairwise(batches):
            if (before.weights != after.weights) != after.stepped:
                wrong.append(f"process {number}, rows {list(after.rows)}")
    return Measure.count(wrong, "micro-batches that change weights without a step, or step without a change")


@ACCUMULATED.law(
    "learning rate", "a schedule that advances with every micro-batch, or once for all processes"
)
@ACCUMULATED.law(
    "learning rate, one process",
    "a schedule that advances with every micro-batch",
    cases=plan(num_ranks=1, accumulation=3),
)
@ACCUMULATED.law(
    "learning rate, split batches",
    "a schedule that advances for each process, though there are as many batches as for one",
    cases=plan(split=True),
)
@ACCUMULATED.law(
    "learning rate, a schedule of epochs",
    "a schedule that advances only with the optimizer, or for each process",
    cases=plan(schedule="epoch"),
)
@ACCUMULATED.law("learning rate, resumed", "a schedule that restarts", cases=plan(resumes_after=2))
def schedule_advances_with_steps(stack: Any, case: AccumulationPlan) -> Measure:
    """Compare the rate after each step with the schedule's."""
    ranks = stack.accumulated(case)
    right = descent(stack.accumulation_spec, case, _steps(ranks))
    found = [
        (
            relative_error(one.rate, other.rate, 1e-9),
            f"step {step + 1} of process {number}: {one.rate:.6g}, due {other.rate:.6g}",
        )
        for number, batches in enumerate(ranks)
        for step, (one, other) in enumerate(zip([one for one in batches if one.stepped], right, strict=True))
    ]
    return Measure.largest(found, 1e-6, "learning rate against the schedule, relative difference")


@ACCUMULATED.law("norm", "the norm after clipping, or of one process", cases=plan(max_norm=0.5))
def norm_is_of_the_whole_gradient(stack: Any, case: AccumulationPlan) -> Measure:
    """Compare the norm that clipping returns with that of the float64 gradient."""
    ranks = stack.accumulated(case)
    right = descent(stack.accumulation_spec, case, _steps(ranks))
    found = [
        (
            relative_error(float("nan") if one.norm is None else one.norm, other.norm, 1e-3),
            f"step {step + 1} of process {number}",
        )
        for number, batches in enumerate(ranks)
        for step, (one, other) in enumerate(zip([one for one in batches if one.stepped], right, strict=True))
    ]
    return Measure.largest(found, 1e-4, "norm before clipping against float64, relative difference")


@ACCUMULATED.law(
    "outputs are float32", "outputs that stay in half precision", cases=plan(mixed=True, num_epochs=1)
)
def outputs_are_float32(stack: Any, case: AccumulationPlan) -> Measure:
    """Check the dtype of what a forward pass in bfloat16 gives to the loss."""
    dtypes = {one.output_dtype for batches in stack.accumulated(case) for one in batches}
    return Measure.count(sorted(dtypes - {"torch.float32"}), "dtypes of outputs that are not float32")


def _steps(ranks: Sequence[Sequence[AccumulatedBatch]]) -> list[list[list[tuple[int, ...]]]]:
    """Return the rows by step, process and micro-batch, up to the last step."""
    made: list[list[list[tuple[int, ...]]]] = []
    for number, batches in enumerate(ranks):
        step, parts = 0, []
        for one in batches:
            parts.append(one.rows)
            if one.stepped:
                if number == 0:
                    made.append([])
                made[step].append(parts)
                step, parts = step + 1, []
    return made
