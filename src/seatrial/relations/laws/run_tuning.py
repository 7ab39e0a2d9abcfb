"""R28 of a whole run of supervised fine-tuning: the answers' likelihood is what is minimised, by AdamW."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.engine import Law, Measure, Relation
from seatrial.relations.facts import facts_of
from seatrial.relations.laws.run_updates import (
    NORM_BOUND,
    RATE_BOUND,
    largest_step_error,
    only_updates_moved,
    rates_error,
)
from seatrial.relations.run_oracles import Weights, weights_before
from seatrial.relations.runs import TuningCase, making_tuning, run_again_tuned
from seatrial.relations.tensors import largest_gradient_difference
from seatrial.relations.tuning_records import AnswerRow
from seatrial.relations.worst import is_worse

# float32 forward and backward passes on both sides, as for `run_gradients`.
BOUND = 1e-4


def tuned_gradients_error(stack: Any, case: TuningCase) -> Measure:
    """Measure every raw gradient against autograd on the plain model."""
    record = case.record(stack)
    worst, place, updates = 0.0, "nowhere", 0
    for step in record.steps:
        for number, update in enumerate(step.updates):
            updates += 1
            before = weights_before(record, step, number)
            leaves = {name: before[name].clone().requires_grad_() for name in sorted(record.trainable)}
            rows = [step.rows[index] for index in update.row_indices]
            found = torch.autograd.grad(
                _loss(stack, {**before, **leaves}, rows), list(leaves.values()), allow_unused=True
            )
            expected = {
                name: torch.zeros_like(leaf) if gradient is None else gradient
                for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
            }
            error, name = largest_gradient_difference(update.gradients, expected)
            if is_worse(error, worst):
                worst, place = error, f"step {step.step}, {name}"
    return Measure(
        error=worst if updates else math.inf,
        bound=BOUND,
        what=f"raw gradient against autograd on the mean over the answers' tokens, {place}, relative difference",
    )


def _logged(stack: Any, case: TuningCase) -> Measure:
    """What is logged of a step of one update: the loss of its rows, its rate, the norm of its gradient."""
    record = case.record(stack)
    worst, place = 0.0, "nowhere"
    for step in record.steps:
        right = {
            "loss": _value(stack, record.weights_at(step.step - 1), step.rows),
            "lr": step.updates[0].learning_rate,
            "grad_norm": step.updates[0].grad_norm,
        }
        for name, value in right.items():
            logged = step.metrics.get(name, math.nan)
            error = abs(logged - value) / max(abs(value), 1e-9)
            if is_worse(error, worst):
                worst, place = error, f"step {step.step}: {name} {logged:.6g} for {value:.6g}"
    return Measure(
        error=worst, bound=max(BOUND, NORM_BOUND), what=f"logged scalars, {place}, relative difference"
    )


def _held_out(stack: Any, case: TuningCase) -> Measure:
    record = case.record(stack)
    steps, period = record.options["sft.max_num_steps"], record.options["sft.val_period"]
    due = [0] * record.options["sft.val_at_start"] + list(range(period, steps + 1, period))
    if [one.step for one in record.losses] != due:
        return Measure(
            error=math.inf, bound=0, what=f"losses at {[one.step for one in record.losses]}, due at {due}"
        )
    asked = sorted(lesson.prompt_id for lesson in record.held_out)
    worst, place = 0.0, "nowhere"
    for one in record.losses:
        if sorted(row.prompt_id for row in one.rows) != asked:
            return Measure(error=math.inf, bound=0, what=f"step {one.step}: the loss is of other prompts")
        right = _value(stack, record.weights_at(one.step), one.rows)
        error = abs(one.loss - right) / max(abs(right), 1e-9)
        if is_worse(error, worst):
            worst, place = error, f"step {one.step}: {one.loss:.6g} for {right:.6g}"
    return Measure(error=worst, bound=BOUND, what=f"loss of held-out answers, {place}, relative difference")


def _adamw(stack: Any, case: TuningCase) -> Measure:
    return largest_step_error(case.record(stack), facts_of(stack).decays)


def _only_updates(stack: Any, case: TuningCase) -> Measure:
    return only_updates_moved(case.record(stack))


def _rates(stack: Any, case: TuningCase) -> Measure:
    record = case.record(stack)
    return rates_error(record, due=record.options["sft.max_num_steps"], bound=RATE_BOUND)


def _learns(stack: Any, case: TuningCase) -> Measure:
    """Steps on few answers make these answers likelier, as the untouched model's own likelihood says."""
    record = case.record(stack)
    rows = list({row.prompt_id: row for step in record.steps for row in step.rows}.values())
    before, after = (
        _value(stack, weights, rows) for weights in (record.initial_weights, record.final_weights)
    )
    return Measure(
        error=after / before, bound=0.8, what=f"loss of the learned answers, {before:.4g} to {after:.4g}"
    )


def _repeats(stack: Any, case: TuningCase) -> Measure:
    one, two = case.record(stack), run_again_tuned(stack, case.options, case.seed)
    wrong = [
        name for name, value in one.final_weights.items() if not torch.equal(value, two.final_weights[name])
    ]
    wrong += [
        f"rows of step {a.step}" for a, b in zip(one.steps, two.steps, strict=False) if a.rows != b.rows
    ]
    if not one.global_streams_untouched:
        wrong.append("a global random stream")
    if one.in_training_mode:
        wrong.append("the model's mode")
    return _count(wrong, "things that differ between two runs of one seed, or that a run leaves changed")


def _loss(stack: Any, weights: Weights, rows: Sequence[AnswerRow]) -> Tensor:
    """Return the mean negative log-likelihood of the answers' tokens, in float64."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for row in rows:
        seen = {} if row.media is None else {"media": row.media}
        logits_SV = stack.next_token_logits(weights, (*row.prompt_ids, *row.ids[:-1]), **seen)
        logprobs_TV = logits_SV[len(row.prompt_ids) - 1 :].double().log_softmax(-1)
        total = total - logprobs_TV[torch.arange(len(row.ids)), list(row.ids)].sum()
        tokens += len(row.ids)
    return total / tokens


def _value(stack: Any, weights: Weights, rows: Sequence[AnswerRow]) -> float:
    with torch.no_grad():
        return float(_loss(stack, weights, rows))


def _count(wrong: Sequence[str], what: str) -> Measure:
    return Measure(error=float(len(wrong)), bound=0, what=f"{what} ({(list(wrong) or ['none'])[0]})")


def _law(name: str, measure: Any, suspects: str, **options: Any) -> Law:
    return Law(name=name, make=making_tuning(**options), measure=measure, suspects=suspects, seeded=False)


SCHEDULE = {"policy__scheduler__name": "linear", "policy__scheduler__warmup_steps": 1}

RELATIONS = (
    Relation(
        id="R28.updates",
        name="tuning-updates-are-the-likelihoods",
        component="fine_tuning",
        statement="Losses and gradients of fine-tuning are those of the answers' mean negative log-likelihood.",
        catalogue=("SB098", "SB102", "SB165", "SB182", "SB185", "SB380", "SB395"),
        cost="CPU, seconds",
        laws=(
            _law(
                "raw gradient",
                tuned_gradients_error,
                "a mean over each micro-batch, prompts in the loss, a sign, a temperature of sampling",
            ),
            _law(
                "raw gradient, packed",
                tuned_gradients_error,
                "attention across boundaries, positions that run on",
                policy__sequence_packing__enabled=True,
                sft__max_num_steps=1,
            ),
            _law("logged scalars", _logged, "the mean of micro-batches' means, the rate of the next update"),
            _law(
                "loss of held-out answers",
                _held_out,
                "training answers scored, a period off by one, old weights",
            ),
            _law("AdamW", _adamw, "clipping twice, moments reset each step", policy__max_grad_norm=0.02),
            _law("learning rates", _rates, "a schedule off by one", **SCHEDULE),
            _law("only updates move weights", _only_updates, "a merge or a rounding after the step"),
            _law(
                "answers become likelier",
                _learns,
                "a sign, weights that never move",
                policy__optimizer__lr=0.05,
            ),
            _law("one seed, one run", _repeats, "a stream that is not seeded, dropout"),
        ),
    ),
)
