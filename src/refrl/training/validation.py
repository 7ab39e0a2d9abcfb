"""Accuracy on the held-out prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from refrl.checkpointing.checkpointer import check_metric_name
from refrl.config import ConfigError, GRPOConfig, GRPORunConfig, SFTConfig, SFTRunConfig
from refrl.rollout.sync import Rollouts
from refrl.streams import random_stream
from refrl.training.session import Session
from refrl.training.step_records import verifier_metrics

METRICS = ("accuracy", "reward", "avg_length", "truncation_rate", "num_verifier_errors")
"""What every validation logs."""


def check_validation_metric(config: GRPORunConfig | SFTRunConfig, loop: GRPOConfig | SFTConfig) -> None:
    """Check that the run logs the validation metric that ranks its checkpoints, if one does.

    Raises:
        ConfigError: the run never validates after a step, or its validations do not log the metric.
    """
    name = config.checkpointing.metric_name or ""
    if not name.startswith("val:"):
        return
    if not loop.val_period and not loop.val_at_end:
        section = "grpo" if isinstance(config, GRPORunConfig) else "sft"
        raise ConfigError(
            f"checkpointing.metric_name={name!r} ranks checkpoints by a validation, and this run has none after a "
            f"step: set {section}.val_period to a divisor of checkpointing.save_period"
        )
    loss = ["val_loss"] if isinstance(config, SFTRunConfig) else []
    parts = [
        f"verifier/{part}/{figure}"
        for part in config.data.verifiers or ()
        for figure in ("reward", "num_errors", "num_timeouts")
    ]
    check_metric_name(config.checkpointing, "val", [*METRICS, *loss, *parts])


def is_validation_step(loop: GRPOConfig | SFTConfig, step: int) -> bool:
    """Return whether the loop validates after a step; step 0 is before the first."""
    if step == 0:
        return loop.val_at_start
    periodic = loop.val_period > 0 and step % loop.val_period == 0
    return periodic or (step == loop.max_num_steps and loop.val_at_end)


def validate(session: Session, loop: GRPOConfig | SFTConfig, step: int) -> float:
    """Sample one completion per held-out prompt; log, print and return `validation/accuracy`.

    `accuracy` is the share of completions with the full reward, `reward` their mean reward. Every validation of a
    run draws the same random numbers, so that differences between them come from the policy and not from luck.
    """
    params = replace(session.sampling, greedy=loop.val_greedy)
    stream = random_stream(loop.seed, "validation", 0)
    with session.timer.time("total_validation_time"):
        session.prepare_for_generation()
        completions = session.worker.sample(session.validation, params, stream)
        rollouts = session.worker.reward(session.validation, completions, session.verifier)
    rewards = rollouts.scores.rewards
    accuracy = sum(reward == 1.0 for reward in rewards) / len(rewards)
    figures = rollouts.metrics()
    judged, judging = verifier_metrics(session.verifier, session.world)
    metrics = {
        "accuracy": accuracy,
        "reward": figures["reward"],
        "avg_length": figures["mean_gen_tokens_per_sample"],
        "truncation_rate": figures["truncation_rate"],
        "num_verifier_errors": figures["num_verifier_errors"],
        **judged,
    }
    session.logger.log(metrics, step, "validation")
    session.logger.log({**session.timer.take(), **judging}, step, "timing/validation")
    session.logger.log_rows(validation_rows(rollouts, step), "validation_data", step)
    session.observer.validated(session, step, rollouts, metrics)
    if rollouts.scores.first_error:
        print(
            f"step {step}  validation: {rollouts.scores.num_errors} verifier errors: {rollouts.scores.first_error}"
        )
    print(f"step {step}  validation accuracy {accuracy:.3f} ({len(rewards)} held-out prompts)", flush=True)
    return accuracy


def validation_rows(rollouts: Rollouts, step: int) -> Iterator[dict[str, Any]]:
    """Yield one log row per held-out prompt."""
    rows = zip(rollouts.examples, rollouts.completions, rollouts.texts, rollouts.scores.rewards, strict=True)
    for index, (example, completion, text, reward) in enumerate(rows):
        yield {
            "step": step,
            "index": index,
            "prompt_id": example.prompt_id,
            "prompt": example.prompt,
            "completion": text,
            "answer": example.answer,
            "task": example.task,
            "token_ids": [*completion.prompt_ids, *completion.ids],
            "prompt_length": len(completion.prompt_ids),
            "reward": reward,
            "finish_reason": completion.finish_reason,
        }
