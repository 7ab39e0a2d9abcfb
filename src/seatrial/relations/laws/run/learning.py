"""R11.run: a step moves the policy where its rewards point, and the KL penalty and the clip limit it."""

from __future__ import annotations

import math
from typing import Any

import torch

from seatrial.relations.law import Measure, Relation
from seatrial.relations.oracles.runs import all_logprobs, completion_logits, token_logprobs
from seatrial.relations.records.run import RunRecord, RunRow
from seatrial.relations.runs import RunCase, run_cases
from seatrial.relations.tensors import largest_gradient_difference

GRADIENT_BOUND = 2e-5  # the same rows in the same micro-batches: rounding of the scale alone
ONE_GROUP = {"grpo__num_prompts_per_step": 1, "grpo__num_generations_per_prompt": 8}
NO_KL = {"loss_fn__reference_policy_kl_penalty": 0.0}
PLAIN = {
    "policy__optimizer__lr": 0.02,
    "policy__optimizer__eps": 1.0,
    "policy__optimizer__betas": (0.0, 0.0),
    "policy__optimizer__weight_decay": 0.0,
    "policy__max_grad_norm": None,
    **NO_KL,
    "grpo__max_num_steps": 1,
    "policy__train_global_batch_size": 8,
}
"""AdamW with no memory and an epsilon of 1 follows the gradient itself."""
# Completions of one token of one prompt: a bandit whose arms are the vocabulary.
BANDIT = run_cases(
    **PLAIN, **ONE_GROUP, policy__generation__max_new_tokens=1, policy__generation__temperature=1.5
)

LEARNING = Relation(
    id="R11.run",
    name="run-learns-what-is-rewarded",
    component="run",
    statement="A step raises what was rewarded and lowers the rest, prompt by prompt; KL and clip limit it.",
    catalogue="SB152 SB165 SB179 SB208",
    cost="CPU, seconds",
    cases=run_cases(**PLAIN),
    seeded=False,
)


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
    """Return how far each reward is from the mean of its group."""
    groups: dict[int, list[float]] = {}
    for row in rows:
        groups.setdefault(row.prompt_id, []).append(row.reward)
    return [row.reward - math.fsum(groups[row.prompt_id]) / len(groups[row.prompt_id]) for row in rows]


@LEARNING.law("better rows rise", "the sign of the loss, advantages negated", cases=BANDIT, sign=1)
@LEARNING.law("worse rows fall", "advantages cut at 0, a missing baseline", cases=BANDIT, sign=-1)
def rows_move_with_their_reward(stack: Any, case: RunCase, sign: int) -> Measure | None:
    """Check that rows on one side of their group's mean reward move to that side, weighted by their distance."""
    record = case.record(stack)
    rows = record.steps[0].rows
    chosen = [
        abs(distance) * rise
        for distance, rise in zip(_deviations(rows), _rises(stack, record, rows), strict=True)
        if distance * sign > 0
    ]
    if not chosen:
        return None
    total = math.fsum(chosen)
    return Measure(
        error=0 if sign * total > 0 else 1,
        bound=0,
        what=f"rows {'above' if sign > 0 else 'below'} their group's mean moved by {total:.3g} in "
        "log-probability (1: the wrong way)",
    )


@LEARNING.law("signs follow the group's mean", "rewards or advantages of other rows")
def signs_follow_the_groups_mean(stack: Any, case: RunCase) -> Measure | None:
    """Check that advantages have the sign of the distance from the group's mean, and that the policy follows them."""
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
        error=wrong + (not total > 0),
        bound=0,
        what=f"rows whose advantage has the wrong sign ({wrong}), or a step against the advantages (rise {total:.3g})",
    )


@LEARNING.law(
    "a high rate stays finite",
    "an exponential before its mask, no clip",
    cases=run_cases(policy__optimizer__lr=0.1, **NO_KL, grpo__max_num_steps=4),
)
def high_rate_stays_finite(stack: Any, case: RunCase) -> Measure:
    """Check that everything logged, sampled and updated stays finite at a rate that is far too high."""
    record = case.record(stack)
    rows = [row for _, _, row in record.rows()]
    numbers = {
        "metrics": [value for step in record.steps for value in step.metrics.values()],
        "log-probabilities": [value for row in rows for value in (*row.sampling_logprobs, *row.old_logprobs)],
        "advantages": [row.advantage for row in rows],
    }
    wrong = [name for name, values in numbers.items() if not all(math.isfinite(value) for value in values)]
    tensors = [record.final_weights, *(update.gradients for _, update in record.updates())]
    wrong += [name for group in tensors for name, value in group.items() if not bool(value.isfinite().all())]
    return Measure.count(wrong, "what is not finite at a high rate")


@LEARNING.law("each prompt has its own baseline", "one baseline for the whole batch")
def prompts_have_their_own_baseline(stack: Any, case: RunCase) -> Measure | None:
    """Check rows that are on another side of their group's mean than of the batch's: the group's must count."""
    rows = case.record(stack).steps[0].rows
    mean = math.fsum(row.reward for row in rows) / len(rows)
    pairs = [
        (row, own) for row, own in zip(rows, _deviations(rows), strict=True) if own * (row.reward - mean) < 0
    ]
    if not pairs:
        return None
    return Measure(
        error=sum(not row.advantage * own > 0 for row, own in pairs),
        bound=0,
        what=f"rows judged by other prompts' rewards, of the {len(pairs)} for which it differs",
    )


@LEARNING.law(
    "Dr. GRPO divides by its constant",
    "the length of the row or the padding",
    cases=run_cases(
        **PLAIN,
        loss_fn__reduction="fixed_length",
        loss_fn__fixed_length=8,
        grpo__advantage__estimator="dr_grpo",
        grpo__advantage__scale="none",
    ),
)
def dr_grpo_divides_by_its_constant(stack: Any, case: RunCase) -> Measure:
    """Check that twice the constant gives half the gradient, for any lengths."""
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


@LEARNING.law(
    "the KL penalty limits the policy",
    "a penalty with the wrong sign, or without gradient",
    cases=run_cases(
        loss_fn__reference_policy_kl_penalty=1.0,
        policy__optimizer__lr=0.003,
        policy__optimizer__weight_decay=0.0,
        grpo__max_num_steps=4,
    ),
)
def kl_penalty_limits_the_policy(stack: Any, case: RunCase) -> Measure:
    """Check that training with the KL penalty ends closer to the reference than training without it."""
    free = _divergence(stack, case.record(stack, **NO_KL))
    limited = _divergence(stack, case.record(stack))
    return Measure(
        error=0 if limited < free else 1,
        bound=0,
        what=f"KL to the reference after training: {limited:.4g} with the penalty, {free:.4g} without (1: not smaller)",
    )


@LEARNING.law(
    "the clip limits the policy",
    "a clip that is ignored, old log-probabilities that are recomputed",
    cases=run_cases(
        loss_fn__ratio_clip_min=1e-4,
        loss_fn__ratio_clip_max=1e-4,
        policy__optimizer__lr=0.02,
        **ONE_GROUP,
        grpo__max_num_steps=1,
    ),
)
def clip_limits_the_policy(stack: Any, case: RunCase) -> Measure:
    """Check that a narrow clip leaves the first update of a step, which is on policy, and changes the second."""
    narrow = case.record(stack)
    wide = case.record(stack, loss_fn__ratio_clip_min=0.99, loss_fn__ratio_clip_max=1e6)
    on_policy, moved = (
        largest_gradient_difference(
            narrow.steps[0].updates[number].gradients, wide.steps[0].updates[number].gradients
        )[0]
        for number in (0, 1)
    )
    return Measure(
        error=(not on_policy <= GRADIENT_BOUND) + (not moved > 1e-3),
        bound=0,
        what=f"a narrow clip changes the first update by {on_policy:.3g}, the second by {moved:.3g} (1: the wrong one)",
    )
