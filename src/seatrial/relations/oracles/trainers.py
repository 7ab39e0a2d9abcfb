"""Float64 oracles of a whole trainer's optimizer steps: loss and gradient of the recorded rows at the recorded weights.

One sequence at a time, without padding, packing or batches, from the definitions that `contracts.trainers` names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seatrial.relations import oracles
from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.contracts.trainers import (
    Rollout,
    RolloutSpec,
    TrainerRecord,
    TrainerRow,
    TrainerSpec,
    TrainerStep,
)
from seatrial.relations.oracles.objectives import StepOracle, objective_loss, token_logprobs
from seatrial.relations.records import AdvantageSpec

Weights = Mapping[str, Tensor]
MicroBatches = Sequence[Sequence[TrainerRow]]


@dataclass(frozen=True)
class Plain:
    """A stack's plain model in the form that the oracles of objectives call: a model is a mapping of its weights."""

    stack: Any

    @property
    def objective_spec(self) -> ObjectiveSpec:
        spec: ObjectiveSpec = self.stack.trainer_spec.objective
        return spec

    def objective_logits(self, model: Weights, ids_S: Tensor) -> Tensor:
        logits: Tensor = self.stack.next_token_logits(model, ids_S.tolist())
        return logits


def doubled(weights: Weights) -> dict[str, Tensor]:
    """Return weights in float64."""
    return {
        name: value.detach().double() if value.is_floating_point() else value
        for name, value in weights.items()
    }


def step_oracle(stack: Any, record: TrainerRecord, step: TrainerStep) -> StepOracle:
    """Return loss and raw gradient of an optimizer step; computed once."""
    if step.step not in record.oracles:
        record.oracles[step.step] = _differentiated(stack, record, step)
    oracle: StepOracle = record.oracles[step.step]
    return oracle


def _differentiated(stack: Any, record: TrainerRecord, step: TrainerStep) -> StepOracle:
    weights = doubled(record.weights_at(step.step - 1))
    leaves = {name: weights[name].requires_grad_() for name in sorted(record.trainable)}
    loss = step_loss(stack, record, weights, step.micro_batches, step.step)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return StepOracle(
        loss=float(loss.detach()),
        gradients={
            name: torch.zeros_like(leaf) if gradient is None else gradient
            for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
        },
    )


def step_loss(
    stack: Any, record: TrainerRecord, weights: Weights, micro_batches: MicroBatches, step: int
) -> Tensor:
    """Return the loss of the rows that went through the model together in an optimizer step (counted from 1)."""
    spec: TrainerSpec = stack.trainer_spec
    reference = reference_weights(spec, record, step - 1)
    if isinstance(spec.objective, RolloutSpec):
        return _rollout_loss(stack, record, weights, reference, micro_batches, spec.objective)
    rows = [row for part in micro_batches for row in part if isinstance(row, Example)]
    parts = [[row for row in part if isinstance(row, Example)] for part in micro_batches]
    if spec.objective.of_mates:
        losses = [objective_loss(Plain(stack), weights, reference, part) * len(part) for part in parts]
        return torch.stack(losses).sum() / len(rows)
    return objective_loss(Plain(stack), weights, reference, rows)


def reference_weights(spec: TrainerSpec, record: TrainerRecord, version: int) -> Weights | None:
    """Return the reference's weights after so many steps, in float64; None without a reference."""
    if record.reference_weights is None:
        return None
    weights = doubled(record.reference_weights)
    if spec.reference_sync is not None:
        alpha, every = spec.reference_sync.alpha, spec.reference_sync.every
        for step in range(every, version + 1, every):
            policy = record.weights_at(step)
            weights = {name: alpha * policy[name].double() + (1 - alpha) * weights[name] for name in weights}
    return weights


def completion_distribution(stack: Any, weights: Weights, row: Rollout, temperature: float) -> Tensor:
    """Return the log-probabilities [T, V] of the tokens of a completion."""
    logits_SV = stack.next_token_logits(weights, [*row.prompt_ids, *row.ids])
    logprobs_SV: Tensor = torch.log_softmax(logits_SV.double() / temperature, -1)
    return logprobs_SV[len(row.prompt_ids) - 1 : -1]


def completion_logprobs(stack: Any, weights: Weights, row: Rollout, temperature: float) -> Tensor:
    """Return the log-probabilities [T] of the ids of a completion."""
    ids_S = torch.tensor([*row.prompt_ids, *row.ids])
    logprobs = token_logprobs(stack.next_token_logits(weights, ids_S.tolist()), ids_S, temperature)
    return logprobs[len(row.prompt_ids) - 1 :]


def is_trained(spec: RolloutSpec, row: Rollout) -> bool:
    """Return whether the tokens of a completion are in the loss."""
    return row.ended or not spec.masks_truncated


def shaped_rewards(stack: Any, record: TrainerRecord, batch: int) -> list[tuple[Rollout, float | None]]:
    """Return the rollouts of a generation with their weighted rewards; None where no function gave one."""
    spec: RolloutSpec = stack.trainer_spec.objective
    found: list[tuple[Rollout, float | None]] = []
    for row in record.rollouts:
        if row.batch != batch:
            continue
        given = [(w, r) for w, r in zip(spec.reward_weights, row.rewards, strict=True) if r is not None]
        reward = math.fsum(weight * value for weight, value in given) if given else None
        if reward is not None and spec.beta and spec.kl_in == "reward":
            with torch.no_grad():
                version = row.weight_version
                own = completion_logprobs(stack, doubled(record.weights_at(version)), row, spec.temperature)
                reference = reference_weights(stack.trainer_spec, record, version)
                assert reference is not None
                given_T = completion_logprobs(stack, reference, row, spec.temperature)
            reward -= spec.beta * float((own - given_T).sum())
        found.append((row, reward))
    return found


def advantages(stack: Any, record: TrainerRecord, batch: int) -> dict[Rollout, float]:
    """Return the advantage of each rollout of a generation; one without a reward has 0 and is in no baseline."""
    spec: RolloutSpec = stack.trainer_spec.objective
    rewarded = shaped_rewards(stack, record, batch)
    scored = [(row, reward) for row, reward in rewarded if reward is not None]
    prompts = {row.prompt_ids: number for number, (row, _) in enumerate(rewarded)}
    given = oracles.advantages(
        [reward for _, reward in scored],
        [prompts[row.prompt_ids] for row, _ in scored],
        AdvantageSpec(estimator=spec.estimator, scale=spec.scale, epsilon=1e-4),
    )
    own = dict(zip((row for row, _ in scored), given, strict=True))
    return {row: own.get(row, 0.0) for row, _ in rewarded}


def _rollout_loss(
    stack: Any,
    record: TrainerRecord,
    weights: Weights,
    reference: Weights | None,
    micro_batches: MicroBatches,
    spec: RolloutSpec,
) -> Tensor:
    parts = [[row for row in part if isinstance(row, Rollout)] for part in micro_batches]
    rows = [row for part in parts for row in part]
    estimated: dict[Rollout, float] = {}
    for batch in {row.batch for row in rows}:
        estimated |= advantages(stack, record, batch)
    counts = [sum(len(row.ids) for row in part if is_trained(spec, row)) for part in parts]
    zero = torch.zeros((), dtype=torch.float64)
    total, entropy = zero, zero
    for part, count in zip(parts, counts, strict=True):
        for row in part:
            if not is_trained(spec, row):
                continue
            tokens_TV = completion_distribution(stack, weights, row, spec.temperature)
            own_T = tokens_TV.gather(1, torch.tensor(row.ids)[:, None])[:, 0]
            losses_T = token_losses(stack, record, row, own_T, reference, estimated[row])
            divisor = {
                "tokens": sum(counts),
                "micro_batch": count * len(parts),
                "rows": len(row.ids) * len(rows),
                "row_sums": len(rows),
                "fixed": spec.fixed_length * len(rows),
            }[spec.reduction]
            total = total + losses_T.sum() / divisor
            if spec.entropy_coefficient:
                entropy = entropy - (tokens_TV.exp() * tokens_TV).sum() / sum(counts)
    return total - spec.entropy_coefficient * entropy


def token_losses(
    stack: Any,
    record: TrainerRecord,
    row: Rollout,
    own_T: Tensor,
    reference: Weights | None,
    advantage: float,
) -> Tensor:
    """Return the losses [T] of a completion; [1] where its ratio is that of the sum of its log-probabilities."""
    spec: RolloutSpec = stack.trainer_spec.objective
    ratio_T = ratios(stack, record, row, own_T)
    if spec.loss == "cispo":
        losses_T = -ratio_T.clamp(max=spec.clip_high).detach() * advantage * own_T
    elif spec.loss == "sapo":
        tau = spec.sapo_temperatures[0 if advantage > 0 else 1]
        losses_T = -4 / tau * torch.sigmoid(tau * (ratio_T - 1)) * advantage
    else:
        bounded_T = ratio_T if spec.delta is None else ratio_T.clamp(max=spec.delta)
        clipped_T = ratio_T.clamp(1 - spec.clip_low, 1 + spec.clip_high)
        losses_T = -torch.minimum(bounded_T * advantage, clipped_T * advantage)
    if spec.beta and spec.kl_in == "loss":
        assert reference is not None
        kl_T = reference_kl(stack, row, own_T, reference)
        losses_T = losses_T + spec.beta * kl_T * (ratio_T if spec.kl_ratio else 1.0)
    return losses_T


def reference_kl(stack: Any, row: Rollout, own_T: Tensor, reference: Weights) -> Tensor:
    """Return k3 of each token, exp(r - c) - (r - c) - 1."""
    with torch.no_grad():
        difference = completion_logprobs(stack, reference, row, stack.trainer_spec.objective.temperature)
    log_ratio_T = difference - own_T
    return log_ratio_T.exp() - log_ratio_T - 1


def ratios(stack: Any, record: TrainerRecord, row: Rollout, own_T: Tensor) -> Tensor:
    """Return the probability ratio of each token, or that of the row: [T], or [1] where it is of the row's sum."""
    spec: RolloutSpec = stack.trainer_spec.objective
    with torch.no_grad():
        sampler = doubled(record.weights_at(row.weight_version))
        old_T = completion_logprobs(stack, sampler, row, spec.temperature)
    log_ratio_T = own_T - old_T
    if spec.ratio == "sum":
        return log_ratio_T.sum()[None].exp()
    if spec.ratio == "mean":
        return log_ratio_T.mean().exp().expand(len(row.ids))
    return log_ratio_T.exp()
