"""What a GRPO step logs: scalars, one row per trained sample, a console line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from refrl.algorithms.batching import Batch
from refrl.config import GRPORunConfig
from refrl.logging import console_line
from refrl.rollout.collect import Collected
from refrl.rollout.sync import Rollouts
from refrl.training.build import verifier_name
from refrl.training.session import Session
from refrl.training.step_metrics import (
    advantage_metrics,
    baseline_metrics,
    performance_metrics,
    verifier_metrics,
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
    )
    session.logger.log(rates, step, "performance")
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
