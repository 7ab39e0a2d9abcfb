"""Metrics and records of a GRPO step: scalars, one row per trained sample, a console line."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.config import GRPORunConfig
from refrl.distributed import World
from refrl.errors import TrainingError
from refrl.logging import console_line
from refrl.rewards.verifiers import Verifier
from refrl.rewards.weighted import WeightedVerifier
from refrl.rollout.collect import Collected
from refrl.rollout.sync import Rollouts
from refrl.training.build import verifier_name
from refrl.training.performance import performance_metrics, utilization_metrics
from refrl.training.session import Session


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


def check_rewards(collected: Collected, limit: float, step: int, log_directory: Path) -> None:
    """Raise if the verifier could not judge too many completions; call it after the step has been logged.

    Args:
        collected: the step's rollouts.
        limit: `grpo.max_verifier_error_share`.
        step: names the step in the message.
        log_directory: where the step is logged.

    Raises:
        TrainingError: with the first error of the verifier.
    """
    share = collected.verifier_error_share
    if share > limit:
        raise TrainingError(
            f"step {step}: the verifier could not judge {share:.0%} of the completions, which is more than "
            f"grpo.max_verifier_error_share={limit:g}; the first error is {collected.first_error}; the step is logged "
            f"in {log_directory}: take the verifier that fits the answers (data.verifier), or correct them"
        )


SHOWN = (
    "reward",
    "loss",
    "grad_norm",
    "lr",
    "token_mult_prob_error",
    "mean_gen_tokens_per_sample",
    "seconds",
)
"""Metrics of the console line."""


class Filtered(NamedTuple):
    """A batch after the filters."""

    batch: Batch
    """With the excluded rows masked."""
    rows: Sequence[bool]
    """Whether the filters exclude each row; the mask must agree."""
    counts: Mapping[str, float]


def log_step(
    session: Session,
    config: GRPORunConfig,
    step: int,
    collected: Collected,
    filtered: Filtered,
    trained: Mapping[str, float],
) -> dict[str, float]:
    """Write the step's scalars and rows, print its console line, and return what is logged under `train/`."""
    rollouts, batch = collected.rollouts, filtered.batch
    seconds = session.timer.take()
    judged, judging = verifier_metrics(session.verifier, session.world)
    figures = collected.metrics()
    metrics = {
        **trained,
        **figures,
        **judged,
        **advantage_metrics(batch),
        **baseline_metrics(batch.rewards_B, batch.group_ids_B),
    }
    session.logger.log(metrics, step, "train")
    session.logger.log({**seconds, **judging}, step, "timing/train")
    rates = performance_metrics(
        seconds,
        num_samples=batch.num_rows,
        num_tokens=figures["total_num_tokens"],
        num_generated=figures["mean_gen_tokens_per_sample"] * batch.num_rows,
        num_processes=session.world.size,
    )
    model = getattr(session.policy, "model", None)
    shares = utilization_metrics(seconds, batch, model, session.world.size)
    session.logger.log({**rates, **shares}, step, "performance")
    session.logger.log_rows(train_rows(session, config, step, rollouts, filtered), "train_data", step)
    if collected.first_error:
        print(f"step {step}  {figures['num_verifier_errors']:.0f} verifier errors: {collected.first_error}")
    shown = {**metrics, "seconds": seconds["total_step_time"]}
    print(console_line(step, config.grpo.max_num_steps, shown, SHOWN), flush=True)
    return metrics


def train_rows(
    session: Session, config: GRPORunConfig, step: int, rollouts: Rollouts, filtered: Filtered
) -> Iterator[dict[str, Any]]:
    """Yield one log row per trained sample, read from the batch that was trained on."""
    batch, verifier = filtered.batch, verifier_name(config.data)
    if batch.advantages_B is None or batch.old_logprobs_BT is None:
        raise ValueError("train_rows needs a batch that was trained on")
    columns = (
        batch.input_ids_BS.tolist(),
        batch.completion_lens_B.tolist(),
        batch.prompt_lens_B.tolist(),
        batch.sampling_logprobs_BT.tolist(),
        batch.old_logprobs_BT.tolist(),
        batch.rewards_B.tolist(),
        batch.advantages_B.tolist(),
        batch.mask_BT.tolist(),
    )
    reference = None if batch.ref_logprobs_BT is None else batch.ref_logprobs_BT.tolist()
    samples = zip(rollouts.examples, rollouts.completions, rollouts.texts, strict=True)
    for index, ((example, completion, text), row) in enumerate(
        zip(samples, zip(*columns, strict=True), strict=True)
    ):
        ids, length, prompt_length, sampling_logprobs, old_logprobs, reward, advantage, mask = row
        extra: dict[str, Any] = {} if verifier is None else {"verifier": verifier}
        if example.media is not None:
            extra["media"] = hashlib.sha256(example.media.encode()).hexdigest()[:16]
        if rollouts.scores.penalties is not None:
            extra["length_penalty"] = rollouts.scores.penalties[index]
        if completion.kept_ids is not None:
            extra["kept_support_sizes"] = [len(kept) for kept in completion.kept_ids[:length]]
        if completion.version_segments:
            extra["weight_version_segments"] = completion.version_segments
        if reference is not None:
            extra["reference_logprobs"] = reference[index][:length]
        yield {
            "step": step,
            "index": index,
            "prompt_id": example.prompt_id,
            "prompt": example.prompt,
            "prompt_text": session.encoder.rendered(example.prompt),
            "completion": text,
            "answer": example.answer,
            "task": example.task,
            "token_ids": ids[: prompt_length + length],
            "prompt_length": prompt_length,
            "loss_mask": [0] * prompt_length + [int(value) for value in mask],
            "filtered": filtered.rows[index],
            "generation_logprobs": sampling_logprobs[:length],
            "prev_logprobs": old_logprobs[:length],
            "reward": reward,
            "verifier_error": rollouts.scores.failed[index],
            "advantage": advantage,
            "finish_reason": completion.finish_reason,
            "weight_version": completion.weight_version,
            **extra,
        }
