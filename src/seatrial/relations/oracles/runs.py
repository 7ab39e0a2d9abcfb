"""Recomputes what a run computes, from its rows, its weights and the stack's plain model.

Losses and advantages come from `oracles` (plain loops in float64); autograd continues from the loss to the weights,
through the stack's `next_token_logits`. Nothing here calls the stack's losses, sampler or optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations import oracles
from seatrial.relations.oracles.options import advantage_spec, loss_spec
from seatrial.relations.records.run import RunRecord, RunRow, StepRecord
from seatrial.relations.records.tuning import TuningRecord, TuningStep

Weights = Mapping[str, Tensor]


def expected_advantages(rows: Sequence[RunRow], options: Mapping[str, Any]) -> list[float]:
    """Return the advantage of every row of a step; a KL in the reward is summed over the tokens that are sampled."""
    rewards = [row.reward for row in rows]
    coefficient = options.get("loss_fn.reference_policy_kl_penalty", 0.0)
    if options.get("loss_fn.kl_in", "loss") == "reward" and coefficient:
        kind = options.get("loss_fn.reference_policy_kl_type", "k3")
        rewards = [row.reward - coefficient * _kl_of(row, kind) for row in rows]
    return oracles.advantages(rewards, [row.prompt_id for row in rows], advantage_spec(options))


def _kl_of(row: RunRow, kind: str) -> float:
    assert row.ref_logprobs is not None
    pairs = zip(row.old_logprobs, row.ref_logprobs, strict=True)
    return math.fsum(oracles.kl_value(old, ref, kind) for old, ref in pairs)


def completion_logits(stack: Any, weights: Weights, row: RunRow) -> Tensor:
    """Return logits_TV that predict a row's completion tokens, without a gradient unless a weight requires one."""
    ids = (*row.prompt_ids, *row.ids[:-1])
    seen = {} if row.media is None else {"media": row.media}
    logits_SV: Tensor = stack.next_token_logits(weights, ids, **seen)
    return logits_SV[len(row.prompt_ids) - 1 :]


def all_logprobs(
    logits_TV: Tensor, temperature: float, support: Sequence[Sequence[int]] | None = None
) -> Tensor:
    """Return logprobs_TV of the configured distribution: temperature, and the ids that a filter left."""
    scaled_TV = logits_TV.double() / temperature
    if support is not None:
        kept_TV = torch.zeros_like(scaled_TV, dtype=torch.bool)
        for token, ids in enumerate(support):
            kept_TV[token, list(ids)] = True
        scaled_TV = scaled_TV.masked_fill(~kept_TV, -math.inf)
    return scaled_TV.log_softmax(-1)


def token_logprobs(stack: Any, weights: Weights, row: RunRow, options: Mapping[str, Any]) -> Tensor:
    """Return logprobs_T of a row's own ids under some weights and the configured distribution."""
    logits_TV = completion_logits(stack, weights, row)
    logprobs_TV = all_logprobs(logits_TV, options["policy.generation.temperature"], row.kept_support)
    return logprobs_TV[torch.arange(len(row.ids)), list(row.ids)]


def configured_support(
    logits_TV: Tensor, temperature: float, top_k: int | None, top_p: float
) -> list[tuple[set[int], set[int]]]:
    """Return for each token (ids that a filter must keep, ids that it may keep).

    Top-k keeps the k likeliest; of these, top-p keeps the likeliest until their probability, renormalised, reaches p.
    The two sets differ by ids that tie, or whose sum is within rounding of p.
    """
    kept = []
    for logits_V in logits_TV.double() / temperature:
        order = logits_V.argsort(descending=True).tolist()
        threshold = float(logits_V[order[min(top_k or len(order), len(order)) - 1]])
        must = [token for token in order if float(logits_V[token]) > threshold + 1e-5]
        may = [token for token in order if float(logits_V[token]) >= threshold - 1e-5]
        within = order[: top_k or len(order)]
        probs = dict(zip(within, logits_V[within].softmax(0).tolist(), strict=True))
        before, narrow, wide = 0.0, set(), set()
        for token in within:
            if before < top_p - 1e-5 or top_p >= 1:
                narrow.add(token)
            if before < top_p + 1e-5 or top_p >= 1:
                wide.add(token)
            before += probs[token]
        ties = set(may) - set(within)
        kept.append((narrow & (set(must) | set(order[:1])), wide | ties))
    return kept


def weights_before(record: RunRecord | TuningRecord, step: StepRecord | TuningStep, update: int) -> Weights:
    """Return the weights that an update (counted from 0) of a step began with."""
    return step.updates[update - 1].weights_after if update else record.weights_at(step.step - 1)


def expected_gradients(stack: Any, record: RunRecord, step: StepRecord, update: int) -> dict[str, Tensor]:
    """Return the raw gradient of an update by parameter, from the rows of its batch."""
    loss, leaves = _surrogate(stack, record, step, update)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
    }


def expected_loss(stack: Any, record: RunRecord, step: StepRecord, update: int) -> float:
    """Return the loss of an update."""
    rows = [step.rows[index] for index in step.updates[update].row_indices]
    with torch.no_grad():
        current, entropies = _current(
            stack, weights_before(record, step, update), rows, options=record.options
        )
    return _oracle(rows, current, entropies, record.options).loss


def _surrogate(
    stack: Any, record: RunRecord, step: StepRecord, update: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a scalar whose gradient is that of the loss, and the leaves it depends on."""
    rows = [step.rows[index] for index in step.updates[update].row_indices]
    before = weights_before(record, step, update)
    leaves = {name: before[name].detach().clone().requires_grad_() for name in sorted(record.trainable)}
    current, entropies = _current(stack, {**before, **leaves}, rows, options=record.options)
    oracle = _oracle(rows, current, entropies, record.options)
    spec = loss_spec(record.options)
    total = torch.zeros((), dtype=torch.float64)
    tokens, sequences = counts_of(rows)
    for row, logprobs_T, entropy_T, slopes in zip(rows, current, entropies, oracle.gradient_BT, strict=True):
        slopes_T = torch.tensor(slopes[: len(row.ids)], dtype=torch.float64)
        total = total + (slopes_T * logprobs_T).sum()
        if spec.entropy_coefficient and any(row.mask):
            weight = oracles.token_weight(spec, sum(row.mask), tokens, sequences)
            mask_T = torch.tensor(row.mask, dtype=torch.float64)
            total = total - weight * spec.entropy_coefficient * (mask_T * entropy_T).sum()
    coefficient = record.options.get("policy.router_aux_loss_coef") or 0.0
    if coefficient:
        total = total + coefficient * balance_loss(stack, {**before, **leaves}, rows)
    return total, leaves


def balance_loss(stack: Any, weights: Weights, rows: Sequence[RunRow]) -> Tensor:
    """Return the routers' balance loss of an update: the mean over its rows and the layers.

    Of a row in a layer, with the E probabilities of its T tokens and k experts a token: the sum over experts of
    (times it was chosen) * E / (k T), times its mean probability (DeepSeek-V3, arXiv 2412.19437, eq. 17-20).
    """
    found = []
    for row in rows:
        for probs_TE, chosen_TK in stack.routing(weights, (*row.prompt_ids, *row.ids)):
            tokens, experts = probs_TE.shape
            counts_E = torch.zeros(experts, dtype=torch.float64)
            for chosen_K in chosen_TK.tolist():
                for expert in chosen_K:
                    counts_E[expert] += 1
            share_E = counts_E * experts / (chosen_TK.shape[1] * tokens)
            found.append((share_E * probs_TE.double().mean(0)).sum())
    return torch.stack(found).mean()


def _current(
    stack: Any, weights: Weights, rows: Sequence[RunRow], *, options: Mapping[str, Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return log-probabilities and entropies of the completion tokens of every row."""
    logprobs, entropies = [], []
    for row in rows:
        all_TV = all_logprobs(
            completion_logits(stack, weights, row),
            options["policy.generation.temperature"],
            row.kept_support,
        )
        logprobs.append(all_TV[torch.arange(len(row.ids)), list(row.ids)])
        entropies.append(-(all_TV.exp() * all_TV.masked_fill(all_TV == -math.inf, 0.0)).sum(-1))
    return logprobs, entropies


def _oracle(
    rows: Sequence[RunRow], current: Sequence[Tensor], entropies: Sequence[Tensor], options: Mapping[str, Any]
) -> oracles.LossOracle:
    tokens, sequences = counts_of(rows)
    return oracles.policy_loss(
        [logprobs_T.detach().tolist() for logprobs_T in current],
        [row.old_logprobs for row in rows],
        [row.ref_logprobs or row.old_logprobs for row in rows],
        [row.sampling_logprobs for row in rows],
        [entropy_T.detach().tolist() for entropy_T in entropies],
        [row.advantage for row in rows],
        [row.mask for row in rows],
        loss_spec(options),
        tokens,
        sequences,
    )


def counts_of(rows: Sequence[RunRow]) -> tuple[float, float]:
    """Return the number of training tokens, and of rows that have one."""
    lengths = [sum(row.mask) for row in rows]
    return float(sum(lengths)), float(sum(length > 0 for length in lengths))


def norm_of(gradients: Weights) -> float:
    """Return the norm over all tensors together."""
    return math.sqrt(math.fsum(float(value.double().square().sum()) for value in gradients.values()))
