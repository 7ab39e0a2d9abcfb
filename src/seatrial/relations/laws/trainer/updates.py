"""R12.whole, R10.whole, R2.whole: each optimizer step of a trainer's own loop is that of its rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Any

import torch

from seatrial.relations.cases.examples import Example
from seatrial.relations.contracts.trainers import Rollout, RolloutSpec, TrainerPlan, TrainerRecord
from seatrial.relations.facts import facts_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.loss.objectives import GRADIENT_BOUND
from seatrial.relations.laws.run.updates import largest_step_error
from seatrial.relations.oracles.schedules import scheduled_rate
from seatrial.relations.oracles.trainers import step_oracle
from seatrial.relations.runs import trainer_run
from seatrial.relations.tensors import largest_gradient_difference

ROUNDED = 1e-9
"""Of the largest gradient: what float64 leaves of a sum that is zero."""
SAMPLED_ROWS = 8
"""Two groups of completions."""


def plan(**options: Any) -> Callable[[Any, int, bool], TrainerPlan]:
    """Return a law's `cases`: a plan with these options; a tidy one has one micro-batch."""
    made = TrainerPlan(**options)

    def make(stack: Any, seed: int, tidy: bool) -> TrainerPlan:
        chosen = TrainerPlan(num_micro_batches=1) if tidy else made
        return replace(chosen, num_rows=SAMPLED_ROWS if samples(stack) else chosen.num_rows, seed=seed)

    return make


def samples(stack: Any) -> str | None:
    """Return the declaration of a trainer that samples its rows; None of one that reads examples."""
    return "it samples its rows" if isinstance(stack.trainer_spec.objective, RolloutSpec) else None


def only_updates(stack: Any) -> str | None:
    """Return the declaration of a trainer that only the laws of updates and their log are meant for."""
    return "trainer_spec.runs='updates'" if stack.trainer_spec.runs == "updates" else None


def stays_in_one_process(stack: Any) -> str | None:
    """Return the declaration of a trainer that the laws of several processes are not meant for."""
    return None if stack.trainer_spec.spreads else "trainer_spec.spreads=False"


def _across_steps(stack: Any, seed: int, tidy: bool) -> TrainerPlan:
    """Return a plan of six micro-batches a step, of which a generation of four serves the end of one and the next."""
    return TrainerPlan(num_rows=12, num_micro_batches=6, seed=seed)


def _generates_for_whole_steps(stack: Any) -> str | None:
    """Return the declaration by which a generation begins with a step, for any number of micro-batches."""
    spec = stack.trainer_spec
    if not isinstance(spec.objective, RolloutSpec):
        return "it samples nothing"
    return None if spec.window > spec.objective.num_uses else "generations of one step each"


MICRO_BATCHED = plan()
WHOLE = plan(num_micro_batches=1, logging_steps=2)
TWO_RANKS = plan(num_micro_batches=1, num_ranks=2)

UPDATES = Relation(
    id="R12.whole",
    name="whole-trainer-takes-the-documented-steps",
    component="whole_trainer",
    statement="The raw gradient of every optimizer step of `train()` equals the oracle of its rows and weights.",
    catalogue="SB001 SB007 SB008 SB015 SB068 SB095 SB119 SB153 SB155 SB156 SB158 SB159 SB168 SB175 SB182",
    cost="CPU, a second a run",
    cases=MICRO_BATCHED,
)
WEIGHTS = Relation(
    id="R10.whole",
    name="whole-trainer-moves-what-it-trains",
    component="whole_trainer",
    statement="Weights after each step are AdamW's on the clipped gradient; frozen tensors stay.",
    catalogue="SB162 SB191 SB221 SB222 SB228 SB341 SB345 SB351 SB353",
    cost="CPU, the runs of R12.whole",
    cases=MICRO_BATCHED,
    excluded=only_updates,
)
RANKS = Relation(
    id="R2.whole",
    name="whole-trainer-ignores-processes",
    component="whole_trainer",
    statement="Rows distributed over two processes give the raw gradient of the whole step, the same on both.",
    catalogue="SB175 SB182 SB185 SB187 SB196 SB199 SB213 SB215 SB230 SB325",
    cost="CPU, ten seconds to start two processes",
    cases=TWO_RANKS,
    excluded=stays_in_one_process,
    thorough=True,
)
SUSPECTS = (
    "a wrong divisor, a mean over each micro-batch, a mask shifted by one, padding attended to, old or reference "
    "log-probabilities of other weights, advantages of other rows"
)


@UPDATES.law("gradient, two micro-batches a step", SUSPECTS)
@UPDATES.law("gradient, one micro-batch a step", SUSPECTS, cases=WHOLE)
@UPDATES.law(
    "gradient, an epoch that ends within a step",
    "a step of fewer micro-batches divided by the configured number",
    cases=plan(num_steps=2, num_examples=6),
    excluded=samples,
)
@UPDATES.law(
    "gradient, generations that begin within a step",
    "log-probabilities of the current policy in place of those of the policy that sampled",
    cases=_across_steps,
    excluded=_generates_for_whole_steps,
)
@RANKS.law("gradient, two processes", "each process divides by its own count, a sum where a mean is due")
def gradient_equals_oracle(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the raw gradient of every step with the oracle."""
    record = trainer_run(stack, case)
    found = [(math.inf, f"{len(record.steps)} steps of {case.num_steps}")]
    found = [] if len(record.steps) == case.num_steps else found
    for step in record.steps:
        error, name = largest_gradient_difference(
            step.update.gradients, step_oracle(stack, record, step).gradients
        )
        sizes = [len(part) for part in step.micro_batches]
        found.append((error, f"step {step.step}, rows {sizes}, {name}"))
    return Measure.largest(
        found, GRADIENT_BOUND, f"raw gradient against the oracle for {stack.trainer_spec.objective}, relative"
    )


@UPDATES.law("gradients are finite and not zero", "a loss of masked rows alone, a detached tensor")
def gradients_are_not_zero(stack: Any, case: TrainerPlan) -> Measure:
    """Check that each trainable tensor gets a finite gradient, and one that is not zero in some step.

    A tensor whose gradient is zero by the oracle, such as a bias that both answers of a pair share, may have none.
    """
    record = trainer_run(stack, case)
    wrong = [
        f"step {step.step}, {name} is not finite"
        for step in record.steps
        for name, value in step.update.gradients.items()
        if not bool(value.isfinite().all())
    ]
    none = {
        name
        for name in record.trainable
        if not any(
            name in step.update.gradients and bool(step.update.gradients[name].any()) for step in record.steps
        )
    }
    wrong += [f"{name} has none" for name in sorted(none - _zero_by_the_oracle(stack, record, none))]
    return Measure.count(wrong, "tensors without a gradient")


def _zero_by_the_oracle(stack: Any, record: TrainerRecord, names: Set[str]) -> set[str]:
    """Return those of these tensors whose gradient is zero, within float64's rounding, in the oracle of each step."""
    zero = set(names)
    for step in record.steps if zero else ():
        gradients = step_oracle(stack, record, step).gradients
        largest = max(float(value.abs().max()) for value in gradients.values())
        zero -= {name for name in zero if float(gradients[name].abs().max()) > ROUNDED * largest}
    return zero


@UPDATES.law(
    "rows are used as often as configured",
    "rows served twice in an epoch, rollouts reused more often than configured, a slice left out",
)
def rows_are_used_as_configured(stack: Any, case: TrainerPlan) -> Measure:
    """Check how many rows each step has, and how often each row is used."""
    record = trainer_run(stack, case)
    wrong = [
        f"step {step.step} has {len(step.rows)} rows of {case.num_rows}"
        for step in record.steps
        if len(step.rows) != case.num_rows and not stack.trainer_spec.packs
    ]
    if samples(stack):
        spec = stack.trainer_spec
        num_uses = spec.objective.num_uses
        parts = case.num_micro_batches if spec.generates_for == "micro_batch" else 1
        wrong += _misused_rollouts(record, num_uses)
        wrong += _generations_of_other_sizes(record, case.num_rows * spec.window // num_uses // parts)
    else:
        used = [row for step in record.steps for row in step.rows if isinstance(row, Example)]
        wrong += _repeated(used, case.num_examples, packs=stack.trainer_spec.packs)
    return Measure.count(wrong, "rows used in another way than configured")


def _repeated(used: Sequence[Example], num_examples: int, *, packs: bool) -> list[str]:
    """Return examples that an epoch serves more than once; packs of two epochs may be in one step."""
    size = len(used) if packs else num_examples
    epochs = [Counter(used[start : start + size]) for start in range(0, len(used), size)]
    return [
        f"an example is used {count} times in epoch {number}, another {min(epoch.values())}"
        for number, epoch in enumerate(epochs, start=1)
        for count in epoch.values()
        if count > (min(epoch.values()) + 1 if packs else 1)
    ]


def _generations_of_other_sizes(record: TrainerRecord, num_rows: int) -> list[str]:
    """Return generations that do not serve the steps of their window."""
    sizes = Counter(row.batch for row in record.rollouts)
    return [
        f"generation {batch} has {size} rows, {num_rows} are due"
        for batch, size in sizes.items()
        if size != num_rows
    ]


def _misused_rollouts(record: TrainerRecord, num_uses: int) -> list[str]:
    used: Counter[Rollout] = Counter(
        row for step in record.steps for row in step.rows if isinstance(row, Rollout)
    )
    last = max(row.weight_version for row in record.rollouts)
    return [
        f"completion {row.number} of generation {row.batch} is used {used[row]} times, {num_uses} are due"
        for row in record.rollouts
        if used[row] > num_uses or (row.weight_version != last and used[row] != num_uses)
    ]


@WEIGHTS.law(
    "AdamW, clipped", "clipping of each micro-batch, decay of frozen tensors, gradients that are scaled"
)
def updates_are_adamw(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the weights after each step with AdamW on its raw gradient."""
    return largest_step_error(trainer_run(stack, case), facts_of(stack).decays, scheduled_rate)


@WEIGHTS.law("logged learning rate", "the rate of the next step, or of the optimizer's first group alone")
def logged_rate_is_the_schedule(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the logged rate of each step with the schedule."""
    record = trainer_run(stack, case)
    found = []
    for step in record.steps:
        right = scheduled_rate(record.options, step.step, len(record.steps))
        logged = step.logged.get("learning_rate", math.nan)
        found.append((abs(logged - right), f"step {step.step}: {logged:.6g}, the schedule's {right:.6g}"))
    return Measure.largest(found, 1e-6, "logged learning rate, difference")


@WEIGHTS.law(
    "only trainable tensors move", "base weights under adapters that train, a reference that is shared"
)
def frozen_tensors_stay(stack: Any, case: TrainerPlan) -> Measure:
    """Check that trainable tensors moved, and no other; one without a gradient by the oracle may stay."""
    record = trainer_run(stack, case)
    moved = {
        name
        for name, value in record.initial_weights.items()
        if not torch.equal(value, record.final_weights[name])
    }
    stayed = record.trainable - moved
    wrong = [f"{name} stayed" for name in sorted(stayed - _zero_by_the_oracle(stack, record, stayed))]
    wrong += [f"{name} moved" for name in sorted(moved - record.trainable)]
    return Measure.count(wrong or ([] if record.trainable else ["none trains"]), "tensors that should not")


@WEIGHTS.law("training mode", "dropout left off after generation or evaluation", cases=plan(eval_steps=2))
def trains_in_training_mode(stack: Any, case: TrainerPlan) -> Measure:
    """Check that each forward pass of training, after an evaluation too, is in training mode."""
    record = trainer_run(stack, case)
    return Measure.count([] if record.was_training else ["a forward pass"], "training in evaluation mode")


@RANKS.law("processes have one gradient", "a tensor that is not exchanged")
def processes_agree(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the gradients of the last step on all processes, bit for bit."""
    first, *others = trainer_run(stack, case).rank_gradients
    wrong = [name for other in others for name, value in first.items() if not torch.equal(value, other[name])]
    return Measure.count(wrong, "gradients that differ between processes")
