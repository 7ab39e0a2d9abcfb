"""R13.whole, R23.whole: a trainer's evaluation and its resumes leave its training as it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from seatrial.relations.contracts.trainers import TrainerPlan, TrainerStep
from seatrial.relations.facts import bound_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.trainer.logged import BOUND, judged_scalars
from seatrial.relations.laws.trainer.updates import (
    gradient_equals_oracle,
    only_updates,
    plan,
    samples,
    stays_in_one_process,
)
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.trainer_metrics import Rows, mean_over_parts, scalar
from seatrial.relations.oracles.trainers import doubled, step_loss
from seatrial.relations.runs import trainer_run
from seatrial.relations.tensors import largest_difference
from seatrial.relations.worst import relative_error

EVALUATED = plan(eval_steps=2)
LOGGED_APART = plan(num_steps=5, eval_steps=2, logging_steps=5)
"""Evaluations and the log of training are due at other steps, the later ones with predictions that hit."""
RESUMED = plan(ends_after=2)
RESUMED_LATER = plan(num_steps=4, num_examples=8, ends_after=3)
"""Two steps an epoch: the run resumes within the second one, whose order is another than that of the first."""

EVALUATION = Relation(
    id="R23.whole",
    name="whole-trainer-evaluates-apart",
    component="whole_trainer",
    statement="Evaluation in between leaves training as it is, is of held-out rows without dropout, and logs them.",
    catalogue="SB216 SB217 SB390 SB391 SB393 SB394 SB396 SB397",
    cost="CPU, a second a run",
    cases=EVALUATED,
    excluded=only_updates,
)
RESUME = Relation(
    id="R13.whole",
    name="whole-trainer-resumes",
    component="whole_trainer",
    statement="A run that is stopped and resumed has the weights, moments, rows and log of the unbroken run.",
    catalogue="SB222 SB228 SB296 SB298 SB299 SB300 SB302 SB303 SB304 SB306 SB307 SB309 SB313 SB317",
    cost="CPU, a second a run",
    cases=RESUMED,
    excluded=only_updates,
)


def _resumes_inside_a_window(stack: Any) -> str | None:
    """Return the declaration by which rollouts are sampled again after a resume, where their window is under way."""
    window = stack.trainer_spec.window
    if only_updates(stack):
        return only_updates(stack)
    return None if 2 % window == 0 else f"trainer_spec.window={window}: rollouts are not in the checkpoint"


def _evaluates_in_one_process(stack: Any) -> str | None:
    """Return the declaration of a trainer whose evaluations are not meant for two processes of equal batches."""
    num_rows = stack.trainer_spec.evaluation.num_rows
    own = None if num_rows is None else f"trainer_spec.evaluation.num_rows={num_rows}: rows may fill a batch"
    return only_updates(stack) or stays_in_one_process(stack) or own


@EVALUATION.law(
    "training is the same", "one random stream for both, a mode that stays, rows taken from training"
)
@EVALUATION.law(
    "training is the same, logged at other steps",
    "values of training that an evaluation logs or throws away",
    cases=LOGGED_APART,
    thorough=True,
)
def evaluation_changes_nothing(stack: Any, case: TrainerPlan) -> Measure:
    """Compare rows, weights and log with those of the same run without evaluation, bit for bit."""
    plain, evaluated = trainer_run(stack, replace(case, eval_steps=0)), trainer_run(stack, case)
    wrong: dict[str, list[str]] = {"rows": [], "weights": []}
    for one, other in zip(plain.steps, evaluated.steps, strict=True):
        if one.rows != other.rows:
            wrong["rows"].append(f"rows of step {one.step}")
        wrong["weights"] += [
            f"{name} after step {one.step}"
            for name, value in one.weights_after.items()
            if not torch.equal(other.weights_after[name], value)
        ]
        _add_unequal(wrong, one, other)
    return Measure.count_of_each(wrong, "what evaluation changed in training")


def _add_unequal(
    wrong: dict[str, list[str]], one: TrainerStep, other: TrainerStep, but: Sequence[str] = ()
) -> None:
    """Add each scalar of a step, by its name, with what it is in the other run where that differs."""
    for name, value in one.logged.items():
        if name in but:
            continue
        given = other.logged.get(name, math.nan)
        same = value == given or (math.isnan(value) and math.isnan(given))
        wrong.setdefault(name, []).extend([] if same else [f"{name} {given} of step {one.step} for {value}"])


@EVALUATION.law("evaluation mode", "dropout that stays on")
def evaluates_in_evaluation_mode(stack: Any, case: TrainerPlan) -> Measure:
    """Check that no forward pass of an evaluation is in training mode, and that evaluations happen when due.

    The end of training may be evaluated too, regardless of the interval.
    """
    record = trainer_run(stack, case)
    spec = stack.trainer_spec.evaluation
    every = spec.every or case.eval_steps
    due = [one for one in range(every, case.num_steps + 1, every) if one >= spec.delay]
    due = [0, *due] if spec.at_start else due
    steps = [one.step for one in record.evaluations]
    at_end = sorted({*due, case.num_steps})
    wrong = [] if steps in (due, at_end) else [f"evaluations after steps {steps}, {due} are due"]
    wrong += [f"evaluation after step {one.step}" for one in record.evaluations if one.was_training]
    return Measure.count(wrong, "evaluations in training mode, or at other steps")


@EVALUATION.law("logged loss and scalars", "training's numbers in evaluation's, another mask or reference")
@EVALUATION.law(
    "logged loss and scalars, between steps that are logged",
    "values of training since its last log",
    cases=LOGGED_APART,
    thorough=True,
)
@EVALUATION.law(
    "logged loss and scalars, two processes",
    "numbers of the first process alone, rows of one process counted for both",
    cases=plan(num_micro_batches=1, num_ranks=2, eval_steps=2),
    excluded=_evaluates_in_one_process,
    thorough=True,
)
def evaluation_equals_oracle(stack: Any, case: TrainerPlan) -> Measure:
    """Compare what each evaluation logs with the definitions, on its rows and the weights of its step.

    In several processes the loss may be the mean of theirs.
    """
    record = trainer_run(stack, case)
    found = []
    for one in record.evaluations:
        rows = Rows(stack, record, one.batches, one.step)
        right = {
            name: [of(definition, rows) for of in (scalar, mean_over_parts)]
            for name, definition in judged_scalars(stack, record, of_steps=False).items()
            if definition.how != "total"
        }
        if not samples(stack) and not stack.trainer_spec.objective.of_mates:
            parts = [one.batches, *([part] for part in one.batches if case.num_ranks > 1)]
            with torch.no_grad():
                whole, *own = [
                    float(step_loss(stack, record, rows.weights, part, one.step + 1)) for part in parts
                ]
            right["loss"] = [whole, math.fsum(own) / len(own)] if own else [whole]
        for name, values in right.items():
            logged = one.logged.get(name, math.nan)
            missing = all(map(math.isnan, values)) and name not in one.logged
            error = 0.0 if missing else min(relative_error(logged, value, 1e-1) for value in values)
            found.append(
                (name, error, f"{name} after step {one.step}: {logged:.6g}, the oracle's {values[0]:.6g}")
            )
    return Measure.largest_of_each(found, BOUND, "logged by evaluations, relative difference")


@EVALUATION.law(
    "logged loss of completions",
    "the divisor of training's micro-batches, a baseline of other completions, NaN where a group is one completion",
    excluded=lambda stack: only_updates(stack) or (None if samples(stack) else "the trainer samples nothing"),
)
def evaluation_loss_of_completions(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the loss that each evaluation logs of sampled completions with the oracle.

    A mean over tokens may be that of each batch, whose means are then averaged over rows.
    """
    record = trainer_run(stack, case)
    found = []
    for one in record.evaluations:
        weights, logged = doubled(record.weights_at(one.step)), one.logged.get("loss", math.nan)
        with torch.no_grad():
            whole, *parts = [
                float(step_loss(stack, record, weights, batches, one.step + 1))
                for batches in (one.batches, *([part] for part in one.batches))
            ]
        counts = [len(part) for part in one.batches]
        mean = sum(n * part for n, part in zip(counts, parts, strict=True)) / sum(counts)
        error = min(relative_error(logged, right, 1e-1) for right in (whole, mean))
        found.append((error, f"after step {one.step}: {logged:.6g}, the oracle's {mean:.6g}"))
    return Measure.largest(found, BOUND, "logged loss of an evaluation, relative difference")


@RESUME.law(
    "gradient, after a resume",
    "old log-probabilities of other weights, a reference that restarts, rollouts of another window",
)
def gradient_equals_oracle_after_resume(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the raw gradient of every step with the oracle, in a run that resumes."""
    return gradient_equals_oracle(stack, case)


@RESUME.law(
    "weights and moments", "a moment or a counter that is not saved", excluded=_resumes_inside_a_window
)
def state_equals_unbroken_run(stack: Any, case: TrainerPlan) -> Measure:
    """Compare weights and optimizer state at the end with those of the unbroken run; bit for bit."""
    whole, resumed = trainer_run(stack, replace(case, ends_after=0)), trainer_run(stack, case)
    found = []
    for what in ("final_weights", "optimizer"):
        right, given = getattr(whole, what), getattr(resumed, what)
        for name in sorted(right.keys() | given.keys()):
            missing = name not in right or name not in given
            error = math.inf if missing else largest_difference(given[name].double(), right[name].double())
            found.append((error, f"{name} of {what}"))
    return Measure.largest(found, bound_of(stack, 0.0), "state against the unbroken run, relative difference")


@RESUME.law(
    "rows, rates and log",
    "a cursor that restarts, a schedule of the part, running means that restart",
    excluded=_resumes_inside_a_window,
)
def steps_equal_unbroken_run(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the rows, learning rate and log of every step with those of the unbroken run."""
    whole, resumed = trainer_run(stack, replace(case, ends_after=0)), trainer_run(stack, case)
    wrong: dict[str, list[str]] = {"steps": [], "rows": [], "rate": []}
    if len(resumed.steps) != len(whole.steps):
        wrong["steps"].append(f"{len(resumed.steps)} steps")
    for one, other in zip(whole.steps, resumed.steps, strict=False):
        if one.rows != other.rows:
            wrong["rows"].append(f"rows of step {one.step}")
        if one.update.learning_rate != other.update.learning_rate:
            wrong["rate"].append(f"rate of step {one.step}: {other.update.learning_rate:.6g}")
        _add_unequal(wrong, one, other, but=totals(stack))
    return Measure.count_of_each(wrong, "rows, rates and scalars that differ from the unbroken run's")


@RESUME.law(
    "rows, in the second epoch",
    "the order of the first epoch, a generator that restarts",
    cases=RESUMED_LATER,
    excluded=lambda stack: samples(stack) or only_updates(stack),
)
def rows_equal_unbroken_run(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the rows of every step with those of the unbroken run.

    Raises:
        NotServed: its options end the run before the step of the resume.
    """
    whole = trainer_run(stack, replace(case, ends_after=0))
    if len(whole.steps) <= case.ends_after:
        raise NotServed(f"its options end the run after {len(whole.steps)} steps, in the first epoch")
    resumed = trainer_run(stack, case)
    wrong = [] if len(resumed.steps) == len(whole.steps) else [f"{len(resumed.steps)} steps"]
    pairs = zip(whole.steps, resumed.steps, strict=False)
    wrong += [f"rows of step {one.step}" for one, other in pairs if one.rows != other.rows]
    return Measure.count(wrong, "steps whose rows differ from the unbroken run's")


@RESUME.law("totals", "a counter that begins again at 0", excluded=_resumes_inside_a_window)
def totals_go_on(stack: Any, case: TrainerPlan) -> Measure | None:
    """Compare every logged total of every step with the unbroken run's; None where the release has none."""
    if not totals(stack):
        return None
    whole, resumed = trainer_run(stack, replace(case, ends_after=0)), trainer_run(stack, case)
    judged = [name for name in totals(stack) if name in judged_scalars(stack, whole)]
    if not judged:
        return None
    wrong = {
        name: [
            f"{name} {other.logged.get(name)} at step {one.step} for {one.logged.get(name)}"
            for one, other in zip(whole.steps, resumed.steps, strict=False)
            if one.logged.get(name) != other.logged.get(name)
        ]
        for name in judged
    }
    return Measure.count_of_each(wrong, "totals that differ from the unbroken run's")


def totals(stack: Any) -> list[str]:
    """Return the names of the scalars that grow from the beginning of training."""
    scalars = stack.trainer_spec.scalars
    return [name for name, definition in scalars.items() if definition.how == "total"]
