"""Checks the scalars that steps and validations of refrl log against their rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from refrl.config import GRPORunConfig
from refrl.rollout.sync import Rollouts
from refrl.training.session import Session, TrainedStep, TunedStep
from seatrial.guards import Guards
from seatrial.relations.measures.rows import OF_ROWS, mean, metric_errors
from seatrial.relations.records.run import RunRow
from seatrial.targets.reference.configuration import effective
from seatrial.targets.reference.guards.base import check

ROUNDING = 1e-3


def check_scalars(
    step: TrainedStep, rows: Sequence[RunRow], config: GRPORunConfig, guards: Guards, *, num_updates: int
) -> None:
    """Check the scalars of a step; those of the policy where a step is one update."""
    is_one = num_updates == 1 and not config.grpo.async_grpo.enabled
    found = list(metric_errors(step.metrics, rows, effective(config), None if is_one else OF_ROWS))
    wrong = [f"{one.name} {one.logged:.6g} for {one.right:.6g}" for one in found if not one.error <= ROUNDING]
    check(guards, "scalars of the rows", wrong, where=f"step {step.step}: ", number=len(found))


def check_counts(session: Session, step: TrainedStep, config: GRPORunConfig, guards: Guards) -> None:
    """Check every count of a step: errors of verifiers, tensors of a sync, ages and fates of groups."""
    parts = [step.rollouts, *([] if step.discarded is None else [step.discarded])]
    size = config.grpo.num_generations_per_prompt
    rights: dict[str, float] = {
        "num_verifier_errors": sum(sum(part.scores.failed) for part in parts),
        "weight_sync/tensors_verified": sum(1 for _ in session.policy.named_weights())
        if "weight_sync/tensors_verified" in step.metrics
        else 0,
        **_group_counts(step),
        **_discarded_counts(step, size),
    }
    known = {name: right for name, right in rights.items() if name in step.metrics}
    wrong = _differing(step.metrics, known, "counted are", abs_tol=1e-9)
    if config.grpo.use_dynamic_sampling:
        flat = _flat_groups(step.rollouts, size)
        wrong += [f"{flat} groups that train have rewards without spread"] if flat else []
    check(guards, "counts of the step", wrong, where=f"step {step.step}: ", number=len(known))


def check_tuned_counts(step: TunedStep, guards: Guards) -> None:
    """Check the counts of tokens and rows of a step of fine-tuning."""
    batch = step.batch
    prompts, answers = batch.prompt_lens_B.tolist(), batch.completion_lens_B.tolist()
    rights = {
        "total_num_tokens": float(sum(prompts) + sum(answers)),
        "mean_prompt_length": sum(prompts) / len(prompts),
        "global_valid_toks": float(sum(answers)),
        "num_valid_samples": float(len(prompts)),
    }
    wrong = _differing(step.metrics, rights, "its rows give")
    check(guards, "counts of the step", wrong, where=f"step {step.step}: ", number=len(rights))


def check_validation_scalars(
    step: int, rollouts: Rollouts, metrics: Mapping[str, float], guards: Guards
) -> None:
    """Check the scalars of a validation."""
    rewards, completions = rollouts.scores.rewards, rollouts.completions
    rights = {
        "reward": mean(rewards),
        "accuracy": mean(one == 1 for one in rewards),
        "avg_length": mean(one.num_sampled for one in completions),
        "truncation_rate": mean(one.finish_reason == "length" for one in completions),
        "num_verifier_errors": float(sum(rollouts.scores.failed)),
    }
    wrong = [
        f"{name} {metrics[name]:.6g} for {right:.6g}"
        for name, right in rights.items()
        if name in metrics and not math.isclose(metrics[name], right, rel_tol=1e-5, abs_tol=1e-5)
    ]
    check(guards, "validation scalars", wrong, where=f"step {step}: ", number=len(rewards))


def _differing(
    metrics: Mapping[str, float], rights: Mapping[str, float], words: str, *, abs_tol: float = 0.0
) -> list[str]:
    """Return which logged scalars are not the right ones."""
    return [
        f"{name} is {metrics[name]:g}, {words} {right:g}"
        for name, right in rights.items()
        if name in metrics and not math.isclose(metrics[name], right, rel_tol=1e-6, abs_tol=abs_tol)
    ]


def _group_counts(step: TrainedStep) -> dict[str, float]:
    """Return ages of the groups that were trained on, in steps, and how many were dropped for which reason."""
    trained = [step.step - 1 - fate.weight_step for fate in step.fates if fate.fate == "trained"]
    if not trained:
        return {}
    dropped = Counter(fate.fate for fate in step.fates if fate.fate != "trained")
    counts = {f"num_{name.replace(' ', '_')}_groups": float(number) for name, number in dropped.items()}
    return {"avg_trajectory_age": mean(trained), "max_trajectory_age": float(max(trained)), **counts}


def _discarded_counts(step: TrainedStep, size: int) -> dict[str, float]:
    """Return how many groups were left out because all their rewards are equal, and how many other rows were."""
    if step.discarded is None or step.fates:
        return {}
    flat = _flat_groups(step.discarded, size)
    return {
        "dynamic_sampling_num_dropped_groups": float(flat),
        "dynamic_sampling_num_discarded_valid_samples": float(len(step.discarded.examples) - size * flat),
    }


def _flat_groups(rollouts: Rollouts, size: int) -> int:
    """Return the number of groups, whose rows follow one another, with equal verified rewards."""
    rewards = rollouts.scores.verified
    groups = [rewards[first : first + size] for first in range(0, len(rewards), size)]
    return sum(max(group) == min(group) for group in groups)
