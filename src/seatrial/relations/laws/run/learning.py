"""R11 of the whole run: a step moves the policy where its rewards point, and the options hold it back."""

from __future__ import annotations

import math
from typing import Any

import torch

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.oracles.runs import all_logprobs, completion_logits, token_logprobs
from seatrial.relations.records.evidence import evidence
from seatrial.relations.records.run import RunRecord, RunRow
from seatrial.relations.runs import RunCase, run_cases
from seatrial.relations.tensors import largest_gradient_difference

GRADIENT_BOUND = 2e-5  # the same rows in the same micro-batches: rounding of the scale alone


@torch.no_grad()
def _rises(stack: Any, record: RunRecord, rows: tuple[RunRow, ...]) -> list[float]:
    """Return by how much the mean log-probability of each row's tokens rose from the first to the last weights."""
    ends = (record.initial_weights, record.final_weights)
    before, after = (
        [float(token_logprobs(stack, weights, row, record.options).mean()) for row in rows]
        for weights in ends
    )
    return [end - start for start, end in zip(before, after, strict=True)]


def _deviations(rows: tuple[RunRow, ...]) -> list[float]:
    """Return how far each reward is from the mean of its own group."""
    groups: dict[int, list[float]] = {}
    for row in rows:
        groups.setdefault(row.prompt_id, []).append(row.reward)
    return [row.reward - math.fsum(groups[row.prompt_id]) / len(groups[row.prompt_id]) for row in rows]


def _weighted(stack: Any, case: RunCase, sign: int) -> Measure | None:
    """Sum the rises of the rows on this side of their group's mean reward, each times its distance from it."""
    record = case.record(stack)
    rows = record.steps[0].rows
    rises = _rises(stack, record, rows)
    chosen = [
        (abs(distance), rise)
        for distance, rise in zip(_deviations(rows), rises, strict=True)
        if distance * sign > 0
    ]
    if not chosen:
        return None
    total = sign * math.fsum(size * rise for size, rise in chosen)
    return Measure(
        error=0.0 if total > 0 else 1.0,
        bound=0,
        what=f"rows {'above' if sign > 0 else 'below'} their group's mean moved by {sign * total:.3g} in "
        "log-probability (1: the wrong way)",
    )


def _better_rows_rise(stack: Any, case: RunCase) -> Measure | None:
    return _weighted(stack, case, 1)


def _worse_rows_fall(stack: Any, case: RunCase) -> Measure | None:
    return _weighted(stack, case, -1)


def _signs(stack: Any, case: RunCase) -> Measure | None:
    """Above the mean of its group a row's advantage is positive, below it negative; so weighted, the policy rises."""
    record = case.record(stack)
    rows = record.steps[0].rows
    deviations = _deviations(rows)
    wrong = sum(
        abs(deviation) > 1e-6 and not row.advantage * deviation > 0
        for row, deviation in zip(rows, deviations, strict=True)
    )
    rises = _rises(stack, record, rows)
    total = math.fsum(deviation * rise for deviation, rise in zip(deviations, rises, strict=True))
    return Measure(
        error=float(wrong) + float(not total > 0),
        bound=0,
        what=f"rows whose advantage has the wrong sign ({wrong}), or a step against the advantages (rise {total:.3g})",
    )


def _stays_finite(stack: Any, case: RunCase) -> Measure:
    """At a rate that is far too high, numbers stay finite: what is logged, sampled and updated."""
    record = case.record(stack)
    numbers: dict[str, list[float]] = {
        "metrics": [value for step in record.steps for value in step.metrics.values()],
        "log-probabilities": [
            value
            for step in record.steps
            for row in step.rows
            for value in (*row.sampling_logprobs, *row.old_logprobs)
        ],
        "advantages": [row.advantage for step in record.steps for row in step.rows],
    }
    wrong = [name for name, values in numbers.items() if not all(math.isfinite(value) for value in values)]
    tensors = [record.final_weights, *(update.gradients for step in record.steps for update in step.updates)]
    wrong += [name for group in tensors for name, value in group.items() if not bool(value.isfinite().all())]
    return Measure(
        error=float(len(wrong)), bound=0, what=f"what is not finite at a high rate ({wrong[:3] or 'none'})"
    )


def _prompts_are_apart(stack: Any, case: RunCase) -> Measure | None:
    """A row is compared with its own prompt's rows: some row stands otherwise to them than to the whole batch."""
    rows = case.record(stack).steps[0].rows
    mean = math.fsum(row.reward for row in rows) / len(rows)
    told, wrong = 0, 0
    for row, own in zip(rows, _deviations(rows), strict=True):
        if own * (row.reward - mean) < 0:
            told += 1
            wrong += not row.advantage * own > 0
    if not told:
        return None
    return Measure(
        error=float(wrong),
        bound=0,
        what=f"rows judged by other prompts' rewards, of the {told} that would tell",
    )


def _fixed_length(stack: Any, case: RunCase) -> Measure:
    """Dr. GRPO divides by a constant: twice the constant is half the gradient, whatever the lengths are."""
    one, two = (
        case.record(stack, loss_fn__fixed_length=length).steps[0].updates[0].gradients for length in (8, 16)
    )
    doubled = {name: 2 * value for name, value in two.items()}
    error, name = largest_gradient_difference(doubled, one)
    return Measure(
        error=error,
        bound=GRADIENT_BOUND,
        what=f"twice the gradient at twice the length, {name}, relative difference",
    )


@torch.no_grad()
def _divergence(stack: Any, record: RunRecord) -> float:
    """Return the mean KL(policy || first policy) at the end, over the contexts of the first step's rows."""
    values = []
    for row in record.steps[0].rows:
        now_TV, start_TV = (
            all_logprobs(completion_logits(stack, weights, row), 1.0)
            for weights in (record.final_weights, record.initial_weights)
        )
        values.append(float((now_TV.exp() * (now_TV - start_TV)).sum(-1).mean()))
    return math.fsum(values) / len(values)


def _kl_holds_back(stack: Any, case: RunCase) -> Measure:
    free = _divergence(stack, case.record(stack, loss_fn__reference_policy_kl_penalty=0.0))
    held = _divergence(stack, case.record(stack))
    return Measure(
        error=0.0 if held < free else 1.0,
        bound=0,
        what=f"KL to the reference after training: {held:.4g} with the penalty, {free:.4g} without (1: not smaller)",
    )


def _clip_holds_back(stack: Any, case: RunCase) -> Measure:
    """The first update of a step is on policy and is not clipped; the second is, where a clip is narrow."""
    narrow = case.record(stack)
    wide = case.record(stack, loss_fn__ratio_clip_min=0.99, loss_fn__ratio_clip_max=1e6)
    (first, second), (free_first, free_second) = (
        evidence(record, "gradients", first=False)[0][:2] for record in (narrow, wide)
    )
    at_rest, _ = largest_gradient_difference(first, free_first)
    moved, _ = largest_gradient_difference(second, free_second)
    return Measure(
        error=(0.0 if at_rest <= GRADIENT_BOUND else 1.0) + (0.0 if moved > 1e-3 else 1.0),
        bound=0,
        what=f"a narrow clip changes the first update by {at_rest:.3g}, the second by {moved:.3g} (1: the wrong one)",
    )


PLAIN = {
    "policy__optimizer__lr": 0.02,
    "policy__optimizer__eps": 1.0,
    "policy__optimizer__betas": (0.0, 0.0),
    "policy__optimizer__weight_decay": 0.0,
    "policy__max_grad_norm": None,
    "loss_fn__reference_policy_kl_penalty": 0.0,
    "grpo__max_num_steps": 1,
    "policy__train_global_batch_size": 8,
}
"""AdamW with no memory and an epsilon of 1 follows the gradient itself."""
ONE_PROMPT = {
    **PLAIN,
    "grpo__num_prompts_per_step": 1,
    "grpo__num_generations_per_prompt": 8,
    "policy__generation__max_new_tokens": 1,
    "policy__generation__temperature": 1.5,
}
"""Completions of one token of one prompt: a bandit whose arms are the vocabulary."""
HIGH_RATE = {
    "policy__optimizer__lr": 0.1,
    "loss_fn__reference_policy_kl_penalty": 0.0,
    "grpo__max_num_steps": 4,
}
DR_GRPO = {
    **PLAIN,
    "loss_fn__reduction": "fixed_length",
    "loss_fn__fixed_length": 8,
    "grpo__advantage__estimator": "dr_grpo",
    "grpo__advantage__scale": "none",
}
HELD = {
    "loss_fn__reference_policy_kl_penalty": 1.0,
    "policy__optimizer__lr": 0.003,
    "policy__optimizer__weight_decay": 0.0,
    "grpo__max_num_steps": 4,
}
NARROW = {
    "loss_fn__ratio_clip_min": 1e-4,
    "loss_fn__ratio_clip_max": 1e-4,
    "policy__optimizer__lr": 0.02,
    "grpo__num_prompts_per_step": 1,
    "grpo__num_generations_per_prompt": 8,
    "grpo__max_num_steps": 1,
}


def _law(name: str, measure: Any, suspects: str, options: dict[str, Any]) -> Law:
    return Law(
        name=name, make=run_cases(tuple(options), **options), measure=measure, suspects=suspects, seeded=False
    )


RELATIONS = (
    Relation(
        id="R11.run",
        name="run-learns-what-is-rewarded",
        component="run",
        statement="A step raises what was rewarded and lowers the rest, prompt by prompt; KL and clip hold it back.",
        catalogue=("SB152", "SB165", "SB179", "SB208"),
        cost="CPU, seconds",
        laws=(
            _law(
                "better rows rise", _better_rows_rise, "the sign of the loss, advantages negated", ONE_PROMPT
            ),
            _law("worse rows fall", _worse_rows_fall, "advantages cut at 0, a missing baseline", ONE_PROMPT),
            _law("signs follow the group's mean", _signs, "rewards or advantages of other rows", PLAIN),
            _law(
                "a high rate stays finite",
                _stays_finite,
                "an exponential before its mask, no clip",
                HIGH_RATE,
            ),
            _law("prompts are kept apart", _prompts_are_apart, "one baseline for the whole batch", PLAIN),
            _law(
                "Dr. GRPO divides by its constant",
                _fixed_length,
                "the length of the row or the padding",
                DR_GRPO,
            ),
            _law(
                "the KL penalty holds back",
                _kl_holds_back,
                "a penalty with the wrong sign, or without gradient",
                HELD,
            ),
            _law(
                "the clip holds back",
                _clip_holds_back,
                "a clip that is ignored, old log-probabilities made anew",
                NARROW,
            ),
        ),
    ),
)
