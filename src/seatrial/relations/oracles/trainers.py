"""Float64 oracles of a whole trainer's optimizer steps: loss and gradient of the recorded rows at the recorded weights.

One sequence at a time, without padding, packing or batches, from the definitions that `contracts.trainers` names.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations import oracles
from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.contracts.trainers import (
    EntropyControl,
    Rollout,
    RolloutSpec,
    TrainerRecord,
    TrainerRow,
    TrainerSpec,
    TrainerStep,
)
from seatrial.relations.oracles.objectives import StepOracle, kept_tokens, objective_loss, token_logprobs
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
    loss = _objective_loss(stack, record, weights, micro_batches, step)
    if spec.balance_weight:
        balance = [stack.balance_loss(weights, _sequences(part, spec)) for part in micro_batches]
        loss = loss + spec.balance_weight * torch.stack(balance).mean()
    return loss


def _sequences(rows: Sequence[TrainerRow], spec: TrainerSpec) -> list[list[int]]:
    """Return the sequences that go through the model for these rows."""
    found: list[list[int]] = []
    for row in rows:
        if isinstance(row, Rollout):
            found.append([*row.prompt_ids, *row.ids])
            continue
        assert isinstance(spec.objective, ObjectiveSpec)
        given = [ids for ids in (row.completion_ids, row.rejected_ids) if ids is not None]
        found += [kept_tokens(row.prompt_ids, ids, spec.objective)[0].tolist() for ids in given]
    return found


def _objective_loss(
    stack: Any, record: TrainerRecord, weights: Weights, micro_batches: MicroBatches, step: int
) -> Tensor:
    spec: TrainerSpec = stack.trainer_spec
    reference = reference_weights(spec, record, step - 1)
    if isinstance(spec.objective, RolloutSpec):
        objective = spec.objective
        if objective.entropy_control is not None:
            own = controlled_coefficient(stack, record, objective, objective.entropy_control, step)
            objective = replace(objective, entropy_coefficient=own)
        return _rollout_loss(stack, record, weights, reference, micro_batches, objective)
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
    """Return the log-probabilities [T, V] of the sampled tokens of a completion."""
    logits_SV = stack.next_token_logits(weights, [*row.prompt_ids, *row.ids])
    logprobs_SV: Tensor = torch.log_softmax(logits_SV.double() / temperature, -1)
    return logprobs_SV[len(row.prompt_ids) - 1 : -1][row.sampled_places]


def completion_logprobs(stack: Any, weights: Weights, row: Rollout, temperature: float) -> Tensor:
    """Return the log-probabilities [T] of the sampled ids of a completion."""
    ids_S = torch.tensor([*row.prompt_ids, *row.ids])
    logprobs = token_logprobs(stack.next_token_logits(weights, ids_S.tolist()), ids_S, temperature)
    return logprobs[len(row.prompt_ids) - 1 :][row.sampled_places]


def is_trained(spec: RolloutSpec, row: Rollout) -> bool:
    """Return whether the tokens of a completion are in the loss."""
    return row.ended or not spec.masks_truncated


def shaped_rewards(
    stack: Any, record: TrainerRecord, rows: Sequence[Rollout]
) -> list[tuple[Rollout, float | None]]:
    """Return rollouts with their weighted rewards; None where no function gave one."""
    spec: RolloutSpec = stack.trainer_spec.objective
    found: list[tuple[Rollout, float | None]] = []
    for row, values in zip(rows, _rewards(spec, rows), strict=True):
        given = [(w, r) for w, r in zip(spec.reward_weights, values, strict=True) if r is not None]
        reward = math.fsum(weight * value for weight, value in given) if given else None
        if reward is not None and spec.reward_range is not None:
            reward = min(max(reward, spec.reward_range[0]), spec.reward_range[1])
        if reward is not None and spec.beta and spec.kl_in == "reward":
            reference = reference_weights(stack.trainer_spec, record, row.weight_version)
            assert reference is not None
            given_T = reference_logprobs(stack, record, row, reference)
            reward += spec.beta * float(log_ratios(stack, record, row, given_T).sum())
        found.append((row, reward))
    return found


def _rewards(spec: RolloutSpec, rows: Sequence[Rollout]) -> list[list[float | None]]:
    """Return the reward of each function for each row, normalized in its group if the aggregation says so."""
    if spec.aggregation == "sum":
        return [list(row.rewards) for row in rows]
    columns = []
    for which in range(len(spec.reward_weights)):
        groups: dict[tuple[int, ...], list[float]] = {}
        for row in rows:
            if (value := row.rewards[which]) is not None:
                groups.setdefault(row.prompt_ids, []).append(value)
        columns.append(
            [
                None if value is None else _normalized(value, groups[row.prompt_ids])
                for row, value in ((row, row.rewards[which]) for row in rows)
            ]
        )
    return [list(values) for values in zip(*columns, strict=True)]


def _normalized(value: float, among: Sequence[float]) -> float:
    """Return the difference to the mean, divided by the sample's standard deviation plus 1e-4."""
    deviation = statistics.stdev(among) if len(among) > 1 else 0.0
    return (value - statistics.fmean(among)) / (deviation + 1e-4)


def advantages(stack: Any, record: TrainerRecord, batch: int) -> dict[Rollout, float]:
    """Return the advantage of each rollout of a generation; one without a reward has 0 and is in no baseline."""
    spec: RolloutSpec = stack.trainer_spec.objective
    sampled = record.evaluated if batch < 0 else record.rollouts
    rewarded = shaped_rewards(stack, record, [row for row in sampled if row.batch == batch])
    scored = [(row, reward) for row, reward in rewarded if reward is not None]
    prompts = {row.prompt_ids: number for number, (row, _) in enumerate(rewarded)}
    values = [reward for _, reward in scored]
    if spec.aggregation == "normalized":
        given = [_normalized(value, values) for value in values]
    else:
        given = oracles.advantages(
            values,
            [prompts[row.prompt_ids] for row, _ in scored],
            AdvantageSpec(estimator=spec.estimator, scale=spec.scale, epsilon=1e-4),
        )
    if spec.normalizes_advantages:
        given = [_normalized(value, given) for value in given]
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
    counts = [sum(len(row.sampled_ids) for row in part if is_trained(spec, row)) for part in parts]
    zero = torch.zeros((), dtype=torch.float64)
    total, entropy = zero, zero
    distributions = {
        row: completion_distribution(stack, weights, row, spec.temperature)
        for row in rows
        if is_trained(spec, row)
    }
    threshold = entropy_threshold(spec, distributions.values())
    for part, count in zip(parts, counts, strict=True):
        for row in part:
            if row not in distributions:
                continue
            tokens_TV = distributions[row]
            own_T = tokens_TV.gather(1, torch.tensor(row.sampled_ids)[:, None])[:, 0]
            losses_T = token_losses(
                stack,
                record,
                row,
                own_T,
                reference,
                estimated[row],
                keeps_T=(None if threshold is None else entropies(tokens_TV) >= threshold),
            )
            divisor = {
                "tokens": sum(counts),
                "micro_batch": count * len(parts),
                "rows": len(row.sampled_ids) * len(rows),
                "row_sums": len(rows),
                "fixed": spec.fixed_length * len(rows),
            }[spec.reduction]
            total = total + losses_T.sum() / divisor
            if spec.entropy_coefficient:
                entropy = entropy + entropies(tokens_TV).sum() / sum(counts)
    return total - spec.entropy_coefficient * entropy


def controlled_coefficient(
    stack: Any, record: TrainerRecord, spec: RolloutSpec, control: EntropyControl, step: int
) -> float:
    """Return the coefficient of the entropy that is effective in a step (counted from 1)."""
    coefficient, entropy = spec.entropy_coefficient, math.inf
    for earlier in record.steps[: step - 1]:
        weights = doubled(record.weights_at(earlier.step - 1))
        rows = [row for row in earlier.rows if isinstance(row, Rollout) and is_trained(spec, row)]
        with torch.no_grad():
            tokens = [completion_distribution(stack, weights, row, spec.temperature) for row in rows]
        entropy = float(torch.cat([entropies(tokens_TV) for tokens_TV in tokens]).mean())
        change = control.delta if entropy <= control.target else -control.delta
        coefficient = min(max(coefficient + change, control.least), control.most)
    return coefficient if entropy <= control.target else 0.0


def entropies(logprobs_TV: Tensor) -> Tensor:
    """Return the entropy of each token's distribution, [T]."""
    return -(logprobs_TV.exp() * logprobs_TV).sum(-1)


def entropy_threshold(spec: RolloutSpec, distributions: Iterable[Tensor]) -> float | None:
    """Return the entropy above which tokens are in the policy term; None if all are."""
    if spec.top_entropy >= 1:
        return None
    all_N = torch.cat([entropies(tokens_TV.detach()) for tokens_TV in distributions])
    return float(all_N.quantile(1 - spec.top_entropy)) - 1e-9


def token_losses(
    stack: Any,
    record: TrainerRecord,
    row: Rollout,
    own_T: Tensor,
    reference: Weights | None,
    advantage: float,
    keeps_T: Tensor | None = None,
) -> Tensor:
    """Return the losses [T] of a completion; [1] where its ratio is that of the sum of its log-probabilities."""
    spec: RolloutSpec = stack.trainer_spec.objective
    ratio_T = ratios(stack, record, row, own_T)
    if spec.loss == "vespo":
        log_w = ratio_T.detach().log().sum()
        k, decay = spec.vespo[0 if advantage >= 0 else 1]
        losses_T = -torch.exp(k * log_w + decay * (1 - log_w.exp())) * advantage * own_T
    elif spec.loss == "cispo":
        losses_T = -ratio_T.clamp(max=spec.clip_high).detach() * advantage * own_T
    elif spec.loss == "sapo":
        tau = spec.sapo_temperatures[0 if advantage > 0 else 1]
        losses_T = -4 / tau * torch.sigmoid(tau * (ratio_T - 1)) * advantage
    else:
        bounded_T = ratio_T if spec.delta is None else ratio_T.clamp(max=spec.delta)
        clipped_T = ratio_T.clamp(1 - spec.clip_low, 1 + spec.clip_high)
        losses_T = -torch.minimum(bounded_T * advantage, clipped_T * advantage)
    if keeps_T is not None:
        losses_T = losses_T * keeps_T
    if spec.off_policy_threshold is not None and advantage < 0:
        drift = -float(log_ratios(stack, record, row, own_T).detach().mean())
        losses_T = losses_T * float(drift <= spec.off_policy_threshold)
    if spec.beta and spec.kl_in == "loss":
        assert reference is not None
        kl_T = reference_kl(stack, record, row, own_T, reference)
        losses_T = losses_T + spec.beta * kl_T * (ratio_T if spec.kl_ratio else 1.0)
    return losses_T


def reference_kl(
    stack: Any, record: TrainerRecord, row: Rollout, own_T: Tensor, reference: Weights
) -> Tensor:
    """Return k3 of each token, exp(r - c) - (r - c) - 1."""
    log_ratio_T = reference_logprobs(stack, record, row, reference) - own_T
    return log_ratio_T.exp() - log_ratio_T - 1


def reference_logprobs(stack: Any, record: TrainerRecord, row: Rollout, reference: Weights) -> Tensor:
    """Return the reference's log-probabilities [T]; computed once for each row if the reference stays the same."""
    key = ("reference", row)
    if key in record.scored:
        kept: Tensor = record.scored[key]
        return kept
    with torch.no_grad():
        found = completion_logprobs(stack, reference, row, stack.trainer_spec.objective.temperature)
    if stack.trainer_spec.reference_sync is None:
        record.scored[key] = found
    return found


def log_ratios(stack: Any, record: TrainerRecord, row: Rollout, own_T: Tensor) -> Tensor:
    """Return the difference of each token's log-probability to that of the weights that sampled it, [T]."""
    key = ("sampler", row)
    if key not in record.scored:
        with torch.no_grad():
            sampler = doubled(record.weights_at(row.weight_version))
            temperature = stack.trainer_spec.objective.temperature
            record.scored[key] = completion_logprobs(stack, sampler, row, temperature)
    old_T: Tensor = record.scored[key]
    return own_T - old_T


def ratios(stack: Any, record: TrainerRecord, row: Rollout, own_T: Tensor) -> Tensor:
    """Return the probability ratio of each token, or that of the row: [T], or [1] where it is of the row's sum."""
    spec: RolloutSpec = stack.trainer_spec.objective
    log_ratio_T = log_ratios(stack, record, row, own_T)
    if spec.ratio == "sum":
        return log_ratio_T.sum()[None].exp()
    if spec.ratio == "mean":
        return log_ratio_T.mean().exp().expand(len(row.sampled_ids))
    return log_ratio_T.exp()
