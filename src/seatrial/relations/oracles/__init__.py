"""Float64 oracles, written as plain loops from the definitions and independent of any stack.

They are slow on purpose: one token at a time, nothing vectorised, nothing shared with the code under test.
Sources of the formulas: the papers named in `refrl.config.LossConfig` and `AdvantageConfig`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from seatrial.relations.oracles import surrogates
from seatrial.relations.records import AdvantageSpec, LossSpec

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class LossOracle:
    """Loss of a micro-batch and its gradient with respect to each log-probability."""

    loss: float
    gradient_BT: list[list[float]]


def token_logprob(logits_V: Sequence[float], token: int, temperature: float) -> float:
    """Return the log-probability of a token under softmax(logits / temperature)."""
    scaled = [logit / temperature for logit in logits_V]
    top = max(scaled)
    return scaled[token] - top - math.log(math.fsum(math.exp(value - top) for value in scaled))


def kl_value(logprob: float, ref_logprob: float, kind: str) -> float:
    """Return the k1, k2, k3 or absolute estimate of KL(policy || reference) at a token sampled from the policy."""
    log_ratio = ref_logprob - logprob
    if kind == "abs":
        return abs(log_ratio)
    if kind == "k1":
        return -log_ratio
    if kind == "k2":
        return log_ratio * log_ratio / 2
    return math.exp(log_ratio) - 1 - log_ratio


def kl_gradient(logprob: float, ref_logprob: float, kind: str) -> float:
    """Return the derivative of `kl_value` with respect to the policy's log-probability."""
    log_ratio = ref_logprob - logprob
    if kind == "abs":
        return float((log_ratio < 0) - (log_ratio > 0))
    if kind == "k1":
        return 1.0
    if kind == "k2":
        return -log_ratio
    return 1.0 - math.exp(log_ratio)


def advantages(rewards: Sequence[float], prompt_ids: Sequence[int], spec: AdvantageSpec) -> list[float]:
    """Return one advantage per row; groups are the rows with equal prompt id."""
    groups: dict[int, list[int]] = {}
    for row, prompt in enumerate(prompt_ids):
        groups.setdefault(prompt, []).append(row)
    centred = [0.0] * len(rewards)
    result = [0.0] * len(rewards)
    for rows in groups.values():
        mean = math.fsum(rewards[row] for row in rows) / len(rows)
        for row in rows:
            centred[row] = rewards[row] - mean
        constant = all(rewards[row] == rewards[rows[0]] for row in rows)
        spread = 0.0 if constant else _deviation([rewards[row] for row in rows], spec.unbiased)
        for row in rows:
            if constant:
                centred[row] = 0.0
            value = centred[row]
            if spec.estimator == "rloo":
                others = [rewards[other] for other in rows if other != row]
                value = rewards[row] - math.fsum(others) / len(others) if others and not constant else 0.0
            if spec.scale == "group":
                value = 0.0 if constant else value / (spread + spec.epsilon)
            result[row] = value
    if spec.scale == "batch":
        # REINFORCE++ whitens what it has centred; the others divide by the spread of all rewards.
        whitened = result if spec.estimator == "reinforce_plus_plus_baseline" else rewards
        spread = _deviation(whitened, spec.unbiased)
        result = [value / (spread + spec.epsilon) if value else 0.0 for value in result]
    return result


def _deviation(values: Sequence[float], unbiased: bool) -> float:
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - int(unbiased)))


def policy_loss(
    logprobs: Matrix,
    old: Matrix,
    ref: Matrix,
    sampling: Matrix,
    entropy: Matrix,
    advantages_B: Sequence[float],
    mask: Matrix,
    spec: LossSpec,
    global_valid_tokens: float,
    global_valid_seqs: float,
) -> LossOracle:
    """Return the loss of the rows given and its gradient, by the definition of each term."""
    loss, gradient = 0.0, [[0.0] * len(row) for row in logprobs]
    chosen = surrogates.tokens_of_covariance(logprobs, old, advantages_B, mask, spec)
    for b, row in enumerate(logprobs):
        valid = [t for t in range(len(row)) if mask[b][t]]
        if not valid:
            continue
        weight = token_weight(spec, len(valid), global_valid_tokens, global_valid_seqs)
        values = surrogates.SurrogateRow(
            logprobs=row, old=old[b], valid=valid, advantage=advantages_B[b], chosen=chosen[b]
        )
        corrections = {t: _correction(old[b][t] - sampling[b][t], spec) for t in valid}
        surrogate, surrogate_gradient = surrogates.surrogate(values, corrections, spec)
        for t in valid:
            kl = spec.kl_penalty * kl_value(row[t], ref[b][t], spec.kl_type)
            loss += weight * (surrogate[t] + kl - spec.entropy_coefficient * entropy[b][t])
            differentiated = "k2" if spec.kl_gradient == "k2" else spec.kl_type
            slope = kl_gradient(row[t], ref[b][t], differentiated) if spec.kl_penalty else 0.0
            if spec.kl_importance_sampling:
                ratio = math.exp(row[t] - old[b][t])
                loss += weight * (ratio - 1) * kl
                slope = ratio * (kl_value(row[t], ref[b][t], spec.kl_type) + slope)
            gradient[b][t] = weight * (surrogate_gradient[t] + spec.kl_penalty * slope)
    return LossOracle(loss, gradient)


def token_weight(spec: LossSpec, length: int, tokens: float, sequences: float) -> float:
    """Return what a token of a row is multiplied by; `length` counts the row's training tokens."""
    if spec.reduction == "token":
        return 1.0 / tokens
    if spec.reduction == "sequence":
        return 1.0 / (length * sequences)
    if spec.reduction == "sum":
        return 1.0
    assert spec.fixed_length is not None
    return 1.0 / (spec.fixed_length * sequences)


def _correction(log_weight: float, spec: LossSpec) -> float:
    weight = math.exp(log_weight)
    if spec.importance_sampling == "truncated":
        return min(weight, spec.importance_sampling_max)
    if spec.importance_sampling == "masked":
        return weight if spec.importance_sampling_min <= weight <= spec.importance_sampling_max else 0.0
    return 1.0
