"""Step metrics that no loss computes, under NeMo RL's names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.distributed import World
from refrl.errors import TrainingError
from refrl.rewards.verifiers import Verifier
from refrl.rewards.weighted import WeightedVerifier


def advantage_metrics(batch: Batch) -> dict[str, float]:
    """Return mean, minimum and maximum of the advantages over sampled tokens.

    Raises:
        ValueError: the batch has no advantages or no sampled token.
    """
    if batch.advantages_B is None:
        raise ValueError("advantage_metrics needs batch.advantages_B")
    per_token = batch.advantages_B.unsqueeze(1).expand_as(batch.mask_BT)[batch.mask_BT.bool()]
    return {
        "advantages/mean": float(per_token.mean()),
        "advantages/min": float(per_token.min()),
        "advantages/max": float(per_token.max()),
    }


def baseline_metrics(rewards_B: Tensor, group_ids_B: Tensor) -> dict[str, float]:
    """Return the shares of rows whose group's mean reward is 0, is 1, and is neither; only the last teach."""
    _, group_B = group_ids_B.unique(return_inverse=True)
    num_groups = int(group_B.max()) + 1
    sums_P = rewards_B.new_zeros(num_groups).index_add(0, group_B, rewards_B)
    sizes_P = rewards_B.new_zeros(num_groups).index_add(0, group_B, rewards_B.new_ones(len(rewards_B)))
    baseline_B = (sums_P / sizes_P)[group_B]
    zero, one = float((baseline_B == 0).float().mean()), float((baseline_B == 1).float().mean())
    return {
        "baseline_reward/pct_0": zero,
        "baseline_reward/pct_1": one,
        "baseline_reward/pct_mixed": 1.0 - zero - one,
    }


def verifier_metrics(verifier: Verifier, world: World) -> tuple[dict[str, float], dict[str, float]]:
    """Return and reset the statistics of a weighted verifier's parts; empty if there is only one verifier.

    Returns:
        (mean reward, errors and time-outs of each part; seconds of each part, summed over all processes).
    """
    if not isinstance(verifier, WeightedVerifier):
        return {}, {}
    metrics, seconds = {}, {}
    shares = world.gather([verifier.take_stats()])
    for part in verifier.parts:
        stats = [share[part.name] for share in shares]
        num_errors = sum(one.num_errors for one in stats)
        num_judged = sum(one.num_calls for one in stats) - num_errors
        if num_judged:
            metrics[f"verifier/{part.name}/reward"] = sum(one.total_reward for one in stats) / num_judged
        metrics[f"verifier/{part.name}/num_errors"] = float(num_errors)
        metrics[f"verifier/{part.name}/num_timeouts"] = float(sum(one.num_timeouts for one in stats))
        seconds[f"reward_calculation/{part.name}"] = sum(one.seconds for one in stats)
    return metrics, seconds


def performance_metrics(
    seconds: Mapping[str, float], *, num_samples: int, num_tokens: float, num_generated: float
) -> dict[str, float]:
    """Return rates per second of the step and of its phases; a rate per GPU is the same: there is one device.

    Args:
        seconds: of each phase, `total_step_time` among them.
        num_samples: rows trained on.
        num_tokens: prompt and completion tokens of these rows.
        num_generated: completion tokens of these rows.
    """
    counted = {
        "tokens_per_sec": (num_tokens, "total_step_time"),
        "generation_tokens_per_sec": (num_generated, "generation"),
        "policy_and_reference_logprobs_tokens_per_sec": (num_tokens, "policy_and_reference_logprobs"),
        "policy_training_tokens_per_sec": (num_tokens, "policy_training"),
    }
    rates = {name: count / seconds[phase] for name, (count, phase) in counted.items() if phase in seconds}
    per_gpu = {f"{name}_per_gpu": rate for name, rate in rates.items()}
    return {"samples_per_sec": num_samples / seconds["total_step_time"], **rates, **per_gpu}


def check_update(trained: Mapping[str, float], step: int, log_directory: Path) -> None:
    """Raise if the gradient is not finite; call it after the step has been logged.

    Raises:
        TrainingError: names the step.
    """
    if not math.isfinite(trained["grad_norm"]):
        raise TrainingError(
            f"step {step}: the gradient norm is {trained['grad_norm']} and the loss {trained['loss']}; the update "
            f"was not taken, the step is logged in {log_directory}"
        )
