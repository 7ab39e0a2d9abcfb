"""R13 of trainers: a run that is ended after a checkpoint and begun again is the run that was not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from seatrial.relations.contracts.resumed_training import TrainedRun, TrainingPlan
from seatrial.relations.facts import bound_of
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.tensors import largest_difference
from seatrial.relations.worst import is_worse


def _make(**options: Any) -> Callable[[Any, int, bool], TrainingPlan]:
    """Return a law's `make`; a tidy plan is ended after its first step, within its first epoch."""
    plan = TrainingPlan(**options)

    def make(stack: Any, seed: int, tidy: bool) -> TrainingPlan:
        return TrainingPlan(num_steps=2, ends_after=(1,), seed=seed) if tidy else replace(plan, seed=seed)

    return make


def _both(stack: Any, plan: TrainingPlan) -> tuple[TrainedRun, TrainedRun]:
    unbroken = replace(plan, ends_after=(), loses_a_step=False)
    return stack.train_as_planned(unbroken), stack.train_as_planned(plan)


def _state(stack: Any, plan: TrainingPlan) -> Measure:
    """Hold weights and moments against those of the unbroken run; bit for bit where no precision is declared."""
    whole, resumed = _both(stack, plan)
    worst, where = (0.0, "no tensor") if whole.weights else (math.inf, "a run without weights")
    for what in ("weights", "optimizer"):
        left, right = getattr(resumed, what), getattr(whole, what)
        for name in sorted(left.keys() | right.keys()):
            missing = name not in left or name not in right
            error = math.inf if missing else largest_difference(left[name].double(), right[name].double())
            if is_worse(error, worst):
                worst, where = error, f"{name} of {what}"
    return Measure(
        error=worst, bound=bound_of(stack, 0.0), what=f"{where} against the unbroken run, relative difference"
    )


def _rates(stack: Any, plan: TrainingPlan) -> Measure:
    """Hold the rates against the schedule itself: the first step's, and the share of the steps that are left."""
    _, resumed = _both(stack, plan)
    wanted = {
        step: 1 - (step - 1) / plan.num_steps if plan.schedule == "linear" else 1.0
        for step in range(1, plan.num_steps + 1)
    }
    first = resumed.rates.get(1, math.nan)
    worst, where = 0.0, "none"
    for step, share in wanted.items():
        error = abs(resumed.rates.get(step, math.nan) / first - share)
        if is_worse(error, worst):
            worst, where = (
                error,
                f"{resumed.rates.get(step, math.nan) / first:.6g} at step {step}, due {share:.6g}",
            )
    return Measure(error=worst, bound=1e-6, what=f"learning rate as a share of the first step's ({where})")


def _served(stack: Any, plan: TrainingPlan) -> Measure:
    """The unbroken run's examples, in its order; and each once an epoch, whatever that order is."""
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


def _log(stack: Any, plan: TrainingPlan) -> Measure:
    """Every scalar of the unbroken run stands in the log once, with its value."""
    whole, resumed = _both(stack, plan)
    wanted = {(name, step): value for name, step, value in whole.log}
    counts = Counter((name, step) for name, step, _ in resumed.log)
    errors = [
        f"{name} of step {step} stands {count} times" for (name, step), count in counts.items() if count > 1
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


def _without_dropout(stack: Any) -> str | None:
    return None if stack.has_dropout else "has_dropout=False"


STATE = "a moment, a counter or a float32 copy that is not saved, or not loaded"
CURSOR = "a cursor that starts anew, that counts micro-batches for steps, or that the loader reads ahead of the steps"

RELATIONS = (
    Relation(
        id="R13.trainer",
        name="trainer-resumes",
        component="resumed_training",
        statement="A run to k and on has the weights, moments, rates, examples and log of the run that was not ended.",
        catalogue=(
            "SB222",
            "SB228",
            "SB296",
            "SB298",
            "SB299",
            "SB300",
            "SB302",
            "SB303",
            "SB304",
            "SB306",
            "SB307",
            "SB309",
            "SB313",
            "SB317",
        ),
        cost="CPU, seconds",
        laws=(
            Law(
                name="state, ended once",
                make=_make(num_steps=4, ends_after=(2,)),
                measure=_state,
                suspects=STATE,
                seeded=False,
            ),
            Law(
                name="state, ended twice",
                make=_make(num_steps=5, ends_after=(2, 3)),
                measure=_state,
                suspects=f"{STATE}; a second save that takes its state from elsewhere than the first",
                seeded=False,
            ),
            Law(
                name="state, several micro-batches a step",
                make=_make(num_steps=3, ends_after=(1,), num_micro_batches=2),
                measure=_state,
                suspects="steps counted in micro-batches, gradients that are left over or lost",
                seeded=False,
            ),
            Law(
                name="state, with dropout",
                make=_make(num_steps=3, ends_after=(2,), dropout=True),
                measure=_state,
                excluded=_without_dropout,
                suspects="random streams that are not saved, or that loading draws from",
                seeded=False,
            ),
            Law(
                name="learning rates of a schedule that falls",
                make=_make(num_steps=5, ends_after=(3,), schedule="linear"),
                measure=_rates,
                suspects="a schedule that begins anew, or whose length is that of the part",
                seeded=False,
            ),
            Law(
                name="examples, ended within an epoch",
                make=_make(num_steps=6, ends_after=(2,)),
                measure=_served,
                suspects=CURSOR,
            ),
            Law(
                name="examples, ended at the end of an epoch",
                make=_make(num_steps=6, ends_after=(3,), num_examples=6),
                measure=_served,
                suspects=f"{CURSOR}; an epoch served twice, in the same order",
            ),
            Law(
                name="examples, ended in the second epoch",
                make=_make(num_steps=6, ends_after=(4,), num_examples=6),
                measure=_served,
                suspects="an order that is drawn from the seed alone, and not from the epoch",
            ),
            Law(
                name="examples, epochs that end within a step",
                make=_make(num_steps=7, ends_after=(3,), num_examples=5),
                measure=_served,
                suspects="a short batch counted as a whole one when the cursor is set",
            ),
            Law(
                name="log, ended once",
                make=_make(num_steps=4, ends_after=(2,)),
                measure=_log,
                suspects="a log that begins anew, steps counted from the checkpoint, running means that start from 0",
                seeded=False,
            ),
            Law(
                name="log, ended after a step that was not saved",
                make=_make(num_steps=4, ends_after=(2,), loses_a_step=True),
                measure=_log,
                suspects="the lost step's scalars left in the log beside those of the step that replaces it",
                seeded=False,
            ),
        ),
    ),
)
