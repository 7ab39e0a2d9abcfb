"""Counts that a step of refrl logs, held to what they count: errors, ages and fates of groups, tensors of a sync."""

from __future__ import annotations

import math
from collections import Counter

from refrl.config import GRPORunConfig
from refrl.rollout.sync import Rollouts
from refrl.training.observed import TrainedStep, TunedStep
from refrl.training.session import Session
from seatrial.guards import Guards


def hold_counts(session: Session, step: TrainedStep, config: GRPORunConfig, guards: Guards) -> None:
    """Every count of a step is that of its rows, groups and weights."""
    parts = [step.rollouts, *([] if step.discarded is None else [step.discarded])]
    rights: dict[str, float] = {
        "num_verifier_errors": sum(sum(part.scores.failed) for part in parts),
        "weight_sync/tensors_verified": sum(1 for _ in session.policy.named_weights())
        if "weight_sync/tensors_verified" in step.metrics
        else 0,
        **_of_groups(step),
        **_of_dynamic_sampling(step, config.grpo.num_generations_per_prompt),
    }
    known = {name: right for name, right in rights.items() if name in step.metrics}
    wrong = [
        f"{name} is {step.metrics[name]:g}, counted are {right:g}"
        for name, right in known.items()
        if not math.isclose(step.metrics[name], right, rel_tol=1e-6, abs_tol=1e-9)
    ]
    if config.grpo.use_dynamic_sampling:
        flat = _flat_groups(step.rollouts, config.grpo.num_generations_per_prompt)
        wrong += [f"{flat} groups that train have rewards without spread"] if flat else []
    guards.hold(
        "counts of the step", not wrong, f"step {step.step}: {', '.join(wrong[:3])}", number=len(known)
    )


def _of_groups(step: TrainedStep) -> dict[str, float]:
    """Return ages of the groups that were trained on, in steps, and how many were dropped for what."""
    trained = [step.step - 1 - fate.weight_step for fate in step.fates if fate.fate == "trained"]
    if not trained:
        return {}
    dropped = Counter(fate.fate for fate in step.fates if fate.fate != "trained")
    counts = {f"num_{name.replace(' ', '_')}_groups": float(number) for name, number in dropped.items()}
    return {
        "avg_trajectory_age": math.fsum(trained) / len(trained),
        "max_trajectory_age": float(max(trained)),
        **counts,
    }


def _of_dynamic_sampling(step: TrainedStep, size: int) -> dict[str, float]:
    """Return how many groups were left out for want of spread, and how many rows that have some."""
    if step.discarded is None or step.fates:
        return {}
    flat = _flat_groups(step.discarded, size)
    return {
        "dynamic_sampling_num_dropped_groups": float(flat),
        "dynamic_sampling_num_discarded_valid_samples": float(len(step.discarded.examples) - size * flat),
    }


def _flat_groups(rollouts: Rollouts, size: int) -> int:
    """Return the number of groups, which stand together, whose verified rewards are all equal."""
    rewards = rollouts.scores.verified
    groups = [rewards[first : first + size] for first in range(0, len(rewards), size)]
    return sum(max(group) == min(group) for group in groups)


def hold_tuned_counts(step: TunedStep, guards: Guards) -> None:
    """The tokens that a step of fine-tuning logs are those of its rows."""
    batch = step.batch
    prompts, answers = batch.prompt_lens_B.tolist(), batch.completion_lens_B.tolist()
    rights = {
        "total_num_tokens": float(sum(prompts) + sum(answers)),
        "mean_prompt_length": sum(prompts) / len(prompts),
        "global_valid_toks": float(sum(answers)),
        "num_valid_samples": float(len(prompts)),
    }
    wrong = [
        f"{name} is {step.metrics[name]:g}, its rows give {right:g}"
        for name, right in rights.items()
        if name in step.metrics and not math.isclose(step.metrics[name], right, rel_tol=1e-6)
    ]
    guards.hold("counts of the step", not wrong, f"step {step.step}: {', '.join(wrong)}", number=len(rights))
