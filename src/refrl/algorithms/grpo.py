"""Group-relative policy optimization: the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from refrl.algorithms.advantages import compute_advantages
from refrl.algorithms.batching import Batch, make_batch
from refrl.algorithms.filters import groups_with_spread, mask_overlong, mask_rows
from refrl.algorithms.kl import penalise_rewards
from refrl.algorithms.losses import policy_loss
from refrl.checkpointing import export_final
from refrl.config import GRPOConfig, GRPORunConfig, LossConfig
from refrl.logging import console_line
from refrl.policy.base import LossFunction
from refrl.rollout.collect import collect_rollouts
from refrl.rollout.sync import Rollouts
from refrl.session import Session, TrainingError, check_update, open_session
from refrl.step_metrics import advantage_metrics, baseline_metrics, performance_metrics, verifier_metrics
from refrl.validation import is_validation_step, validate

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


def run_grpo(config: GRPORunConfig) -> None:
    """Train, log, validate and export.

    Raises:
        ConfigError: the configuration names something that is missing or does not fit.
        TrainingError: the gradient is not finite; the step is in the log.
        FloatingPointError: the model's logits are not finite, so that nothing can be sampled.
    """
    num_rows = config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt
    num_updates = config.grpo.max_num_steps * (num_rows // config.policy.train_global_batch_size)
    with_reference = config.loss_fn.reference_policy_kl_penalty > 0
    with open_session(config, config.grpo, num_updates=num_updates, with_reference=with_reference) as session:
        if is_validation_step(config.grpo, 0):
            validate(session, config.grpo, 0)
        for step in range(1, config.grpo.max_num_steps + 1):
            train_step(session, config, step)
            if is_validation_step(config.grpo, step):
                validate(session, config.grpo, step)
        export_final(session.policy, session.final)


def train_step(session: Session, config: GRPORunConfig, step: int) -> None:
    """Sample, reward, score, update, log."""
    time = session.timer.time
    with time("total_step_time"):
        rollouts, filtered = collect_rollouts(session, config, step)
        with time("logprob_inference_prep"):
            batch = make_rollout_batch(rollouts, session.tokenizer.pad_token_id, config)
        with time("policy_and_reference_logprobs"):
            if not config.loss_fn.force_on_policy_ratio:
                batch.old_logprobs_BT = session.policy.logprobs(batch)
            batch.ref_logprobs_BT = session.policy.reference_logprobs(batch)
        with time("advantage_calculation"):
            batch.advantages_B = rollout_advantages(batch, config)
            batch, masked = mask_filtered(batch, rollouts, config.grpo, step)
        with time("policy_training"):
            trained = session.policy.train(batch, make_loss(config.loss_fn))
    log_step(session, config, step, rollouts, batch, {**trained, **filtered, **masked})
    check_update(trained, step, session.logger.directory)


def make_rollout_batch(rollouts: Rollouts, pad_token_id: int, config: GRPORunConfig) -> Batch:
    """Pad completions into a batch; each row keeps its own reward and the id of its prompt."""
    return make_batch(
        rollouts.samples(),
        pad_token_id=pad_token_id,
        sequence_buckets=config.policy.sequence_length_buckets,
        max_sequence_length=config.policy.max_total_sequence_length,
    )


def mask_filtered(
    batch: Batch, rollouts: Rollouts, config: GRPOConfig, step: int
) -> tuple[Batch, dict[str, float]]:
    """Mask the rows that the filters keep out of the loss, and count them. Advantages are computed before.

    Raises:
        TrainingError: no row is left.
    """
    counts: dict[str, float] = {}
    rewards_B = batch.rewards_B
    if config.overlong_filtering:
        cut_off = [completion.finish_reason == "length" for completion in rollouts.completions]
        counts["num_overlong_filtered"] = float(sum(cut_off))
        batch = mask_overlong(batch, torch.tensor(cut_off))
    if config.zero_variance_filter:
        equal_B = ~groups_with_spread(rewards_B, batch.group_ids_B)
        counts["num_zero_variance_filtered"] = float(equal_B.sum())
        batch = mask_rows(batch, equal_B)
    if counts and not batch.num_valid_tokens:
        told = " and ".join(f"{name} {count:.0f} of {batch.num_rows} rows" for name, count in counts.items())
        raise TrainingError(
            f"step {step}: the filters leave nothing to train on ({told}): raise policy.generation.max_new_tokens, "
            "take grpo.use_dynamic_sampling for the prompts, or leave a filter out"
        )
    return batch, counts


def rollout_advantages(batch: Batch, config: GRPORunConfig) -> Tensor:
    """Return advantages_B of the rewards, less the KL to the reference where the configuration puts it there."""
    rewards_B = batch.rewards_B
    loss = config.loss_fn
    if loss.kl_in == "reward" and batch.ref_logprobs_BT is not None and batch.old_logprobs_BT is not None:
        rewards_B = penalise_rewards(
            rewards_B,
            batch.old_logprobs_BT,
            batch.ref_logprobs_BT,
            batch.mask_BT,
            coefficient=loss.reference_policy_kl_penalty,
            kind=loss.reference_policy_kl_type,
        )
    return compute_advantages(rewards_B, batch.group_ids_B, config.grpo.advantage)


def make_loss(config: LossConfig) -> LossFunction:
    """Return the policy loss under a configuration."""

    def loss(
        logprobs_BT: Tensor,
        entropy_BT: Tensor,
        batch: Batch,
        *,
        global_valid_tokens: Tensor,
        global_valid_seqs: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return policy_loss(
            logprobs_BT,
            batch,
            config,
            global_valid_tokens=global_valid_tokens,
            global_valid_seqs=global_valid_seqs,
            entropy_BT=entropy_BT,
        )

    return loss


def log_step(
    session: Session,
    config: GRPORunConfig,
    step: int,
    rollouts: Rollouts,
    batch: Batch,
    trained: Mapping[str, float],
) -> None:
    """Write the step's scalars and rows, and print its line."""
    seconds = session.timer.take()
    judged, judging = verifier_metrics(session.verifier, session.world)
    figures = rollouts.metrics()
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
    session.logger.log_rows(train_rows(rollouts, batch, step), "train_data", step)
    if rollouts.scores.first_error:
        print(f"step {step}  {rollouts.scores.num_errors} verifier errors: {rollouts.scores.first_error}")
    shown = {**metrics, "seconds": seconds["total_step_time"]}
    print(console_line(step, config.grpo.max_num_steps, shown, SHOWN), flush=True)


def train_rows(rollouts: Rollouts, batch: Batch, step: int) -> Iterator[dict[str, Any]]:
    """Yield one row of evidence per trained sample, taken from the batch that was trained on."""
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
        batch.mask_BT.any(1).tolist(),
    )
    samples = zip(rollouts.examples, rollouts.completions, rollouts.texts, strict=True)
    for index, ((example, completion, text), row) in enumerate(
        zip(samples, zip(*columns, strict=True), strict=True)
    ):
        ids, length, prompt_length, sampling_logprobs, old_logprobs, reward, advantage, is_trained = row
        extra: dict[str, Any] = {} if is_trained else {"filtered": True}
        if rollouts.scores.penalties is not None:
            extra["length_penalty"] = rollouts.scores.penalties[index]
        yield {
            "step": step,
            "index": index,
            "prompt_id": example.prompt_id,
            "prompt": example.prompt,
            "completion": text,
            "answer": example.answer,
            "task": example.task,
            "token_ids": ids[: prompt_length + length],
            "prompt_length": prompt_length,
            "generation_logprobs": sampling_logprobs[:length],
            "prev_logprobs": old_logprobs[:length],
            "reward": reward,
            "advantage": advantage,
            "finish_reason": completion.finish_reason,
            **extra,
        }
