"""R28 of a whole run of supervised fine-tuning: the answers' likelihood is what is minimised, by AdamW."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.facts import facts_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.run.updates import (
    NORM_BOUND,
    RATE_BOUND,
    largest_step_error,
    only_updates_moved,
    rates_error,
)
from seatrial.relations.measures.updates import validations_due
from seatrial.relations.oracles.runs import Weights, weights_before
from seatrial.relations.records.tuning import AnswerRow
from seatrial.relations.runs import TuningCase, run_again_tuned, tuning_cases
from seatrial.relations.tensors import largest_gradient_difference
from seatrial.relations.worst import Worst

# float32 forward and backward passes on both sides, as for `run_gradients`.
BOUND = 1e-4
SCHEDULE = {"policy__scheduler__name": "linear", "policy__scheduler__warmup_steps": 1}

UPDATES = Relation(
    id="R28.updates",
    name="tuning-updates-are-the-likelihoods",
    component="fine_tuning",
    statement="Losses and gradients of fine-tuning are those of the answers' mean negative log-likelihood.",
    catalogue="SB098 SB102 SB165 SB182 SB185 SB380 SB395",
    cost="CPU, seconds",
    cases=tuning_cases(),
    seeded=False,
)


@UPDATES.law(
    "raw gradient", "a mean over each micro-batch, prompts in the loss, a sign, a temperature of sampling"
)
@UPDATES.law(
    "raw gradient, packed",
    "attention across boundaries, positions that run on",
    cases=tuning_cases(policy__sequence_packing__enabled=True, sft__max_num_steps=1),
)
def tuned_gradients_error(stack: Any, case: TuningCase) -> Measure:
    """Compare every raw gradient with autograd on the plain model."""
    record = case.record(stack)
    worst = Worst() if any(step.updates for step in record.steps) else Worst(math.inf, "no update")
    for step in record.steps:
        for number, update in enumerate(step.updates):
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
            worst.add(error, f"step {step.step}, {name}")
    return Measure(
        error=worst.error,
        bound=BOUND,
        what=f"raw gradient against autograd on the mean over the answers' tokens, {worst.place}, relative difference",
    )


@UPDATES.law("logged scalars", "the mean of micro-batches' means, the rate of the next update")
def logged_scalars(stack: Any, case: TuningCase) -> Measure:
    """Compare what is logged of each step with the loss of its rows, its learning rate, the norm of its gradient."""
    record = case.record(stack)
    worst = Worst()
    for step in record.steps:
        right = {
            "loss": _value(stack, record.weights_at(step.step - 1), step.rows),
            "lr": step.updates[0].learning_rate,
            "grad_norm": step.updates[0].grad_norm,
        }
        for name, value in right.items():
            logged = step.metrics.get(name, math.nan)
            error = abs(logged - value) / max(abs(value), 1e-9)
            worst.add(error, f"step {step.step}: {name} {logged:.6g} for {value:.6g}")
    return Measure(
        error=worst.error,
        bound=max(BOUND, NORM_BOUND),
        what=f"logged scalars, {worst.place}, relative difference",
    )


@UPDATES.law("loss of held-out answers", "training answers scored, a period off by one, old weights")
def loss_of_held_out_answers(stack: Any, case: TuningCase) -> Measure:
    """Compare each validation loss with that of the held-out answers at the weights of its step."""
    record = case.record(stack)
    due = validations_due(record.options, loop="sft")
    if [one.step for one in record.losses] != due:
        return Measure(
            error=math.inf, bound=0, what=f"losses at {[one.step for one in record.losses]}, due at {due}"
        )
    expected = sorted(lesson.prompt_id for lesson in record.held_out)
    worst = Worst()
    for one in record.losses:
        if sorted(row.prompt_id for row in one.rows) != expected:
            return Measure(error=math.inf, bound=0, what=f"step {one.step}: the loss is of other prompts")
        right = _value(stack, record.weights_at(one.step), one.rows)
        worst.add(
            abs(one.loss - right) / max(abs(right), 1e-9), f"step {one.step}: {one.loss:.6g} for {right:.6g}"
        )
    return Measure(
        error=worst.error, bound=BOUND, what=f"loss of held-out answers, {worst.place}, relative difference"
    )


@UPDATES.law(
    "AdamW", "clipping twice, moments reset each step", cases=tuning_cases(policy__max_grad_norm=0.02)
)
def adamw(stack: Any, case: TuningCase) -> Measure:
    """Compare each update with AdamW in float64 on the raw gradients."""
    return largest_step_error(case.record(stack), facts_of(stack).decays)


@UPDATES.law("learning rates", "a schedule off by one", cases=tuning_cases(**SCHEDULE))
def learning_rates(stack: Any, case: TuningCase) -> Measure:
    """Compare the learning rate of each update with the schedule."""
    record = case.record(stack)
    return rates_error(record, due=record.options["sft.max_num_steps"], bound=RATE_BOUND)


@UPDATES.law("only updates move weights", "a merge or a rounding after the step")
def only_updates(stack: Any, case: TuningCase) -> Measure:
    """Check that weights change in updates and nowhere else."""
    return only_updates_moved(case.record(stack))


@UPDATES.law(
    "answers become likelier",
    "a sign, weights that never move",
    cases=tuning_cases(policy__optimizer__lr=0.05),
)
def answers_become_likelier(stack: Any, case: TuningCase) -> Measure:
    """Check that a few steps on few answers lower their loss, by the untouched model's own likelihood."""
    record = case.record(stack)
    rows = list({row.prompt_id: row for step in record.steps for row in step.rows}.values())
    before, after = (
        _value(stack, weights, rows) for weights in (record.initial_weights, record.final_weights)
    )
    return Measure(
        error=after / before, bound=0.8, what=f"loss of the learned answers, {before:.4g} to {after:.4g}"
    )


@UPDATES.law("one seed, one run", "a stream that is not seeded, dropout")
def one_seed_one_run(stack: Any, case: TuningCase) -> Measure:
    """Check that two runs of one seed are bitwise equal, and leave global streams and the model's mode alone."""
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
    return Measure.count(
        wrong, "things that differ between two runs of one seed, or that a run leaves changed"
    )


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
