"""R22 of the whole run: what a step logs is recomputed from its rows."""

from __future__ import annotations

import math
from typing import Any

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.measures.rows import FORMULAS, mean, metric_errors
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.runs import expected_loss, norm_of
from seatrial.relations.runs import RunCase, run_cases
from seatrial.relations.worst import is_worse

BOUND = 1e-4  # sums of float32 over a few hundred tokens, of values that float32 forward passes made
LEAST = {"loss": 1.0}
"""Metrics that may be 0: their errors are absolute below this."""
FEWEST = 5
"""Metrics that must be known by name, or the law says nothing."""


def _recomputed(stack: Any, case: RunCase) -> Measure:
    worst, place, known = 0.0, "nowhere", 0
    record = case.record(stack)
    for step in record.steps:
        for one in metric_errors(step.metrics, step.rows, record.options):
            known += 1
            if is_worse(one.error, worst):
                worst, place = (
                    one.error,
                    f"step {step.step}, {one.name}: {one.logged:.7g} for {one.right:.7g}",
                )
    if known < FEWEST:
        raise NotServed(f"fewer than {FEWEST} of the metrics that have a definition here are logged")
    return Measure(
        error=worst, bound=BOUND, what=f"metric against the rows of its step, {place}, relative difference"
    )


def _loss(stack: Any, case: RunCase) -> Measure:
    record = case.record(stack)
    worst, place = 0.0, "nowhere"
    for step in record.steps:
        right = expected_loss(stack, record, step, 0)
        error = abs(step.metrics.get("loss", math.nan) - right) / max(1.0, abs(right))
        if is_worse(error, worst):
            worst, place = error, f"step {step.step}: {step.metrics.get('loss')} for {right:.7g}"
    return Measure(
        error=worst, bound=BOUND, what=f"logged loss against the loss of the rows, {place}, difference"
    )


def _several_updates(stack: Any, case: RunCase) -> Measure:
    """Loss, gradient norm and rate of a step are means over its updates, recomputed from rows and gradients."""
    worst, place = 0.0, "nowhere"
    record = case.record(stack)
    for step in record.steps:
        rights = {
            "loss": mean(expected_loss(stack, record, step, number) for number in range(len(step.updates))),
            "grad_norm": mean(norm_of(update.gradients) for update in step.updates),
            "lr": mean(update.learning_rate for update in step.updates),
        }
        for name, right in rights.items():
            if name not in step.metrics or len(step.updates) < 2:
                continue
            error = abs(step.metrics[name] - right) / max(LEAST.get(name, 1e-12), abs(right))
            if is_worse(error, worst):
                worst, place = error, f"step {step.step}, {name}: {step.metrics[name]:.7g} for {right:.7g}"
    return Measure(
        error=worst, bound=BOUND, what=f"metric against the updates of its step, {place}, relative difference"
    )


def _moves(stack: Any, case: RunCase) -> Measure:
    """What depends on rows differs between two steps of different rows."""
    first, second = case.record(stack).steps[:2]
    still = ("probs_ratio", "probs_ratio_min", "probs_ratio_max", "num_valid_samples", "global_valid_seqs")
    constant = [
        name
        for name, formula in FORMULAS.items()
        if name in first.metrics
        and name not in still
        and abs(formula(first.rows) - formula(second.rows)) > BOUND * max(1.0, abs(formula(first.rows)))
        and first.metrics[name] == second.metrics[name]
    ]
    return Measure(
        error=float(len(constant)),
        bound=0,
        what=f"metrics that do not move with their rows ({constant[:3] or 'none'})",
    )


def _validation(stack: Any, case: RunCase) -> Measure:
    """The reward of a validation is the mean of its rows; its accuracy that, or the share of rows with all of it."""
    validations = case.record(stack).validations
    if not validations or not all({"accuracy", "reward"} & one.metrics.keys() for one in validations):
        raise NotServed("validations log neither a reward nor an accuracy")
    worst, place = 0.0, "nowhere"
    for one in validations:
        rewards = [reward for _, _, reward in one.rows]
        average, share = mean(rewards), mean(reward == 1.0 for reward in rewards)
        for name, rights in (("reward", (average,)), ("accuracy", (average, share))):
            if name not in one.metrics:
                continue
            error = min(abs(one.metrics[name] - right) for right in rights)
            if is_worse(error, worst):
                worst, place = (
                    error,
                    f"{name} after step {one.step}: {one.metrics[name]:.7g} for {average:.7g}",
                )
    return Measure(error=worst, bound=1e-5, what=f"what a validation logs against its rewards, {place}")


ONE_UPDATE = {"policy__train_global_batch_size": 8, "policy__generation__max_new_tokens": 8}
COARSE = {**ONE_UPDATE, "data__verifier": "coarse"}
TWO_UPDATES = {"policy__train_global_batch_size": 4}
VALIDATED = {"grpo__val_period": 1, "grpo__val_at_start": True, "grpo__max_val_samples": 3}


def _law(name: str, measure: Any, suspects: str, options: dict[str, Any]) -> Law:
    return Law(
        name=name, make=run_cases(tuple(options), **options), measure=measure, suspects=suspects, seeded=False
    )


RELATIONS = (
    Relation(
        id="R22.run",
        name="run-metrics-are-of-their-rows",
        component="run",
        statement="What a step of a run logs is what its own rows give, and a validation's what its rows give.",
        catalogue=(
            "SB058",
            "SB059",
            "SB214",
            "SB278",
            "SB362",
            "SB364",
            "SB367",
            "SB368",
            "SB371",
            "SB374",
            "SB385",
        ),
        cost="CPU, seconds",
        laws=(
            _law(
                "metrics of a step",
                _recomputed,
                "the step before, one micro-batch or one rank alone, padding counted, a mean of means",
                ONE_UPDATE,
            ),
            _law(
                "metrics of a step, of coarse rewards",
                _recomputed,
                "rows counted for groups, advantages for rewards",
                COARSE,
            ),
            _law(
                "loss of a step",
                _loss,
                "a mean of micro-batches, one rank's share, a term left out",
                ONE_UPDATE,
            ),
            _law(
                "metrics of several updates",
                _several_updates,
                "a sum in place of a mean, the last update alone, the norm after clipping",
                TWO_UPDATES,
            ),
            _law(
                "metrics move", _moves, "a placeholder, a value that is kept from the first step", ONE_UPDATE
            ),
            _law(
                "accuracy of a validation",
                _validation,
                "rows of training counted, a sum for a mean",
                VALIDATED,
            ),
        ),
    ),
)
