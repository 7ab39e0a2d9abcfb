"""R13.trainer: a training run that is stopped after a checkpoint and resumed equals the unbroken run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from seatrial.relations.contracts.resumed_training import TrainedRun, TrainingPlan
from seatrial.relations.facts import bound_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.runs import planned_training
from seatrial.relations.tensors import largest_difference


def _plan(num_steps: int, *ends_after: int, **options: Any) -> Callable[[Any, int, bool], TrainingPlan]:
    """Return a law's `cases`; a tidy plan stops after its first step, within its first epoch."""
    plan = TrainingPlan(num_steps=num_steps, ends_after=ends_after, **options)

    def make(stack: Any, seed: int, tidy: bool) -> TrainingPlan:
        return TrainingPlan(num_steps=2, ends_after=(1,), seed=seed) if tidy else replace(plan, seed=seed)

    return make


RESUME = Relation(
    id="R13.trainer",
    name="trainer-resumes",
    component="resumed_training",
    statement="A run that is stopped and resumed has the unbroken run's weights, moments, rates, examples and log.",
    catalogue="SB222 SB228 SB296 SB298 SB299 SB300 SB302 SB303 SB304 SB306 SB307 SB309 SB313 SB317",
    cost="CPU, seconds",
    seeded=False,
)
STATE = "a moment, a counter or a float32 copy that is not saved, or not loaded"
CURSOR = (
    "a cursor that restarts, that counts micro-batches for steps, or that the loader reads ahead of the steps"
)


def _both(stack: Any, plan: TrainingPlan) -> tuple[TrainedRun, TrainedRun]:
    """Return the unbroken run and the resumed one."""
    unbroken = replace(plan, ends_after=(), loses_a_step=False)
    return planned_training(stack, unbroken), planned_training(stack, plan)


def _needs_dropout(stack: Any) -> str | None:
    return None if stack.has_dropout else "has_dropout=False"


@RESUME.law("state, stopped once", STATE, cases=_plan(4, 2))
@RESUME.law(
    "state, stopped twice",
    f"{STATE}; a second save that takes its state from elsewhere than the first",
    cases=_plan(5, 2, 3),
)
@RESUME.law(
    "state, several micro-batches a step",
    "steps counted in micro-batches, gradients that are left over or lost",
    cases=_plan(3, 1, num_micro_batches=2),
)
@RESUME.law(
    "state, with dropout",
    "random streams that are not saved, or that loading draws from",
    cases=_plan(3, 2, dropout=True),
    excluded=_needs_dropout,
)
def state_equals_unbroken_run(stack: Any, plan: TrainingPlan) -> Measure:
    """Compare weights and moments with those of the unbroken run; bit for bit if no precision is declared."""
    whole, resumed = _both(stack, plan)
    found = []
    for what in ("weights", "optimizer") if whole.weights else ():
        left, right = getattr(resumed, what), getattr(whole, what)
        for name in sorted(left.keys() | right.keys()):
            missing = name not in left or name not in right
            error = math.inf if missing else largest_difference(left[name].double(), right[name].double())
            found.append((error, f"{name} of {what}"))
    return Measure.largest(found, bound_of(stack, 0.0), "state against the unbroken run, relative difference")


@RESUME.law(
    "learning rates of a schedule that falls",
    "a schedule that restarts, or whose length is that of the part",
    cases=_plan(5, 3, schedule="linear"),
)
def rates_follow_the_schedule(stack: Any, plan: TrainingPlan) -> Measure:
    """Compare the rates, as shares of the first step's, with the schedule."""
    rates = _both(stack, plan)[1].rates
    found = []
    for step in range(1, plan.num_steps + 1):
        due = 1 - (step - 1) / plan.num_steps if plan.schedule == "linear" else 1.0
        share = rates.get(step, math.nan) / rates.get(1, math.nan)
        found.append((abs(share - due), f"{share:.6g} at step {step}, due {due:.6g}"))
    return Measure.largest(found, 1e-6, "learning rate as a share of the first step's")


@RESUME.law("examples, stopped within an epoch", CURSOR, cases=_plan(6, 2), seeded=True)
@RESUME.law(
    "examples, stopped at the end of an epoch",
    f"{CURSOR}; an epoch served twice, in the same order",
    cases=_plan(6, 3, num_examples=6),
    seeded=True,
)
@RESUME.law(
    "examples, stopped in the second epoch",
    "an order that is drawn from the seed alone, and not from the epoch",
    cases=_plan(6, 4, num_examples=6),
    seeded=True,
)
@RESUME.law(
    "examples, epochs that end within a step",
    "a short batch counted as a whole one when the cursor is set",
    cases=_plan(7, 3, num_examples=5),
    seeded=True,
)
def examples_equal_unbroken_run(stack: Any, plan: TrainingPlan) -> Measure:
    """Compare the served examples with the unbroken run's, in order; each comes once an epoch in any order."""
    whole, resumed = _both(stack, plan)
    errors = [
        f"step {step}: {list(resumed.served.get(step, ()))} instead of {list(right)}"
        for step, right in sorted(whole.served.items())
        if list(resumed.served.get(step, ())) != list(right)
    ]
    errors += (
        [] if len(whole.served) == plan.num_steps else [f"{len(whole.served)} steps of {plan.num_steps}"]
    )
    if stack.serves_every_example:
        order = [example for _, examples in sorted(resumed.served.items()) for example in examples]
        errors += _epochs_with_repeats(order, plan.num_examples)
    return Measure.count(errors, "steps that serve other examples")


def _epochs_with_repeats(order: Sequence[int], num_examples: int) -> list[str]:
    found = []
    for start in range(0, len(order), num_examples):
        repeated = [
            example for example, count in Counter(order[start : start + num_examples]).items() if count > 1
        ]
        if repeated:
            found.append(f"epoch {start // num_examples + 1}: {repeated} more than once")
    return found


@RESUME.law(
    "log, stopped once",
    "a log that restarts, steps counted from the checkpoint, running means that start from 0",
    cases=_plan(4, 2),
)
@RESUME.law(
    "log, stopped after a step that was not saved",
    "the lost step's scalars left in the log next to those of the step that replaces it",
    cases=_plan(4, 2, loses_a_step=True),
)
def log_equals_unbroken_run(stack: Any, plan: TrainingPlan) -> Measure:
    """Check that every scalar of the unbroken run is in the log once, with its value."""
    whole, resumed = _both(stack, plan)
    wanted = {(name, step): value for name, step, value in whole.log}
    counts = Counter((name, step) for name, step, _ in resumed.log)
    errors = [
        f"{name} of step {step} is logged {count} times"
        for (name, step), count in counts.items()
        if count > 1
    ]
    errors += [f"no {name} of step {step}" for name, step in wanted if (name, step) not in counts]
    errors += [
        f"{name} of step {step}, which the unbroken run has not"
        for name, step in counts
        if (name, step) not in wanted
    ]
    bound = bound_of(stack, 0.0)
    errors += [
        f"{name} of step {step}: {value:.9g} instead of {wanted[name, step]:.9g}"
        for name, step, value in resumed.log
        if (name, step) in wanted and not _close(value, wanted[name, step], bound)
    ]
    errors += [] if whole.log else ["a run without a log"]
    return Measure.count(errors, "scalars that differ from the unbroken run's")


def _close(value: float, wanted: float, bound: float) -> bool:
    both_nan = math.isnan(value) and math.isnan(wanted)
    return both_nan or value == wanted or abs(value - wanted) <= bound * max(abs(value), abs(wanted))
