"""R22.run: what a step or a validation logs is recomputed from its rows."""

from __future__ import annotations

import math
from typing import Any

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.run.filters import SEVERAL
from seatrial.relations.measures.rows import FORMULAS, mean, metric_errors
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.runs import expected_loss, norm_of
from seatrial.relations.runs import SEVERAL_TURNS, RunCase, run_cases
from seatrial.relations.worst import relative_error

BOUND = 1e-4  # sums of float32 over a few hundred tokens, of values that float32 forward passes made
FEWEST = 5
"""Metrics with a known definition that a stack must log."""
ONE_UPDATE = {"policy__train_global_batch_size": 8, "policy__generation__max_new_tokens": 8}

METRICS = Relation(
    id="R22.run",
    name="run-metrics-are-of-their-rows",
    component="run",
    statement="The metrics that a step or a validation of a run logs are those of its own rows.",
    catalogue="SB058 SB059 SB214 SB278 SB362 SB364 SB367 SB368 SB371 SB374 SB385",
    cost="CPU, seconds",
    cases=run_cases(**ONE_UPDATE),
    seeded=False,
)


@METRICS.law(
    "metrics of a step",
    "the step before, one micro-batch or one rank alone, padding counted, a mean of means",
)
@METRICS.law(
    "metrics of a step, of coarse rewards",
    "rows counted for groups, advantages for rewards",
    cases=run_cases(**ONE_UPDATE, data__verifier="coarse"),
)
@METRICS.law(
    "metrics of a step, of several generation batches",
    "rows that were left out counted, the last batch alone",
    cases=run_cases(**SEVERAL),
)
@METRICS.law(
    "metrics of a step, of several turns",
    "an environment's words counted as sampled",
    cases=run_cases(**SEVERAL_TURNS),
)
def metrics_of_a_step(stack: Any, case: RunCase) -> Measure:
    """Compare each logged metric that has a formula with that of the step's rows.

    Raises:
        NotServed: fewer than `FEWEST` such metrics are logged.
    """
    record = case.record(stack)
    found = [
        (one.name, one.error, f"step {step.step}, {one.name}: {one.logged:.7g} for {one.right:.7g}")
        for step in record.steps
        for one in metric_errors(step.metrics, step.rows, record.options)
    ]
    if len(found) < FEWEST:
        raise NotServed(f"fewer than {FEWEST} of the metrics that have a definition here are logged")
    return Measure.largest_of_each(found, BOUND, "metric against the rows of its step, relative difference")


@METRICS.law("loss of a step", "a mean of micro-batches, one rank's share, a term left out")
def loss_of_a_step(stack: Any, case: RunCase) -> Measure:
    """Compare the logged loss with the loss of the step's rows."""
    record = case.record(stack)
    found = []
    for step in record.steps:
        right, logged = expected_loss(stack, record, step, 0), step.metrics.get("loss", math.nan)
        found.append((relative_error(logged, right), f"step {step.step}: {logged} for {right:.7g}"))
    return Measure.largest(found, BOUND, "logged loss against the loss of the rows, difference")


@METRICS.law(
    "metrics of several updates",
    "a sum in place of a mean, the last update alone, the norm after clipping",
    cases=run_cases(policy__train_global_batch_size=4),
)
def metrics_of_several_updates(stack: Any, case: RunCase) -> Measure | None:
    """Compare a step's loss, gradient norm and rate with their means over the step's updates."""
    record = case.record(stack)
    found = []
    for step in record.steps:
        rights = {
            "loss": mean(expected_loss(stack, record, step, number) for number in range(len(step.updates))),
            "grad_norm": mean(norm_of(update.gradients) for update in step.updates),
            "lr": mean(update.learning_rate for update in step.updates),
        }
        for name, right in rights.items():
            if name in step.metrics and len(step.updates) > 1:
                # A loss may be 0: its error is absolute below 1.
                error = relative_error(step.metrics[name], right, 1.0 if name == "loss" else 1e-12)
                place = f"step {step.step}, {name}: {step.metrics[name]:.7g} for {right:.7g}"
                found.append((name, error, place))
    what = "metric against the updates of its step, relative difference"
    return Measure.largest_of_each(found, BOUND, what) if found else None


@METRICS.law("metrics move", "a placeholder, a value that is kept from the first step")
def metrics_move(stack: Any, case: RunCase) -> Measure:
    """Check that metrics that depend on rows differ between two steps whose rows give different values."""
    first, second = case.record(stack).steps[:2]
    fixed = ("probs_ratio", "probs_ratio_min", "probs_ratio_max", "num_valid_samples", "global_valid_seqs")
    constant = {
        name: [name] * (first.metrics[name] == second.metrics[name])
        for name, formula in FORMULAS.items()
        if name in first.metrics
        and name not in fixed
        and relative_error(formula(second.rows), formula(first.rows)) > BOUND
    }
    return Measure.count_of_each(constant, "metrics that do not move with their rows")


@METRICS.law(
    "accuracy of a validation",
    "rows of training counted, a sum for a mean",
    cases=run_cases(grpo__val_period=1, grpo__val_at_start=True, grpo__max_val_samples=3),
)
def accuracy_of_a_validation(stack: Any, case: RunCase) -> Measure:
    """Compare the reward with the mean of the rows; the accuracy with that, or with the share of perfect rows.

    Raises:
        NotServed: validations log neither.
    """
    validations = case.record(stack).validations
    if not validations or not all({"accuracy", "reward"} & one.metrics.keys() for one in validations):
        raise NotServed("validations log neither a reward nor an accuracy")
    found = []
    for one in validations:
        rewards = [reward for _, _, reward in one.rows]
        average, share = mean(rewards), mean(reward == 1.0 for reward in rewards)
        for name, rights in (("reward", (average,)), ("accuracy", (average, share))):
            if name in one.metrics:
                error = min(abs(one.metrics[name] - right) for right in rights)
                place = f"{name} after step {one.step}: {one.metrics[name]:.7g} for {average:.7g}"
                found.append((name, error, place))
    return Measure.largest_of_each(found, 1e-5, "metric of a validation against its rewards")


@METRICS.law(
    "lengths of a validation",
    "prompts or padding counted, rows of training, the share that ended for the share that was cut off",
    cases=run_cases(grpo__val_period=1, grpo__val_at_start=True, grpo__max_val_samples=3),
)
def lengths_of_a_validation(stack: Any, case: RunCase) -> Measure:
    """Compare the logged length and the logged share that was cut off with the sampled ids.

    Raises:
        NotServed: validations log neither, or the stack does not report what it sampled.
    """
    record = case.record(stack)
    found = []
    for one in record.validations:
        answers = [ids for _, ids in one.sampled]
        rights = {
            "avg_length": mean(map(len, answers)) if answers else math.nan,
            "truncation_rate": mean(ids[-1] not in record.stop_ids for ids in answers)
            if answers
            else math.nan,
        }
        found += [
            (
                name,
                abs(one.metrics[name] - right),
                f"{name} after step {one.step}: {one.metrics[name]:.7g} for {right:.7g}",
            )
            for name, right in rights.items()
            if name in one.metrics
        ]
    if not found:
        raise NotServed("validations log neither avg_length nor truncation_rate")
    return Measure.largest_of_each(found, 1e-5, "metric of a validation against the ids that it sampled")
