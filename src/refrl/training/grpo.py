"""Group-relative policy optimization: the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple

import torch
from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.algorithms.filters import groups_with_spread, mask_overlong, mask_rows
from refrl.algorithms.kl import penalise_rewards
from refrl.config import GRPOConfig, GRPORunConfig
from refrl.errors import TrainingError
from refrl.policy.base import Update
from refrl.rollout.sync import Rollouts
from refrl.training.asynchronous import collecting
from refrl.training.build import build_advantages, build_batch, build_loss
from refrl.training.opening import open_session
from refrl.training.session import Observer, Observers, Session, TrainedStep, shown
from refrl.training.step_records import Filtered, check_rewards, check_update, log_step
from refrl.training.steps import Steps
from refrl.training.validation import is_validation_step, validate


def run_grpo(config: GRPORunConfig, observer: Observer | None = None) -> None:
    """Train, log, validate, save and export; resume from the last checkpoint if there is one.

    Args:
        config: the whole run.
        observer: notified of each event of the run.

    Raises:
        ConfigError: the configuration names something that is missing or does not fit.
        TrainingError: the gradient is not finite, or the verifier judges too few completions; the step is in the log.
        FloatingPointError: the model's logits are not finite, so nothing can be sampled.
    """
    num_rows = config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt
    num_updates = config.grpo.max_num_steps * (num_rows // config.policy.train_global_batch_size)
    with_reference = config.loss_fn.reference_policy_kl_penalty > 0
    observer = Observers([RewardNote(), *([] if observer is None else [observer])])
    with (
        open_session(
            config, config.grpo, num_updates=num_updates, with_reference=with_reference, observer=observer
        ) as opened,
        collecting(opened, config) as session,
    ):
        if session.attempt.checkpoint is None and is_validation_step(config.grpo, 0):
            validate(session, config.grpo, 0)
        steps = Steps(session, config.grpo.max_num_steps)
        for step in steps:
            train_step(session, config, step)
            if is_validation_step(config.grpo, step):
                validate(session, config.grpo, step)
        steps.export()


class RewardNote(Observer):
    """Prints a line at the end of a run in which no completion had a reward."""

    def __init__(self) -> None:
        """Start before the first step."""
        self._steps: list[int] = []
        self._is_rewarded = self._is_answered = False

    def trained(self, session: Session, step: TrainedStep) -> None:
        """Look at the rewards of a step, and whether the environment answered."""
        self._steps.append(step.step)
        self._is_rewarded |= any(step.rollouts.scores.verified)
        self._is_answered |= any(completion.mask is not None for completion in step.rollouts.completions)

    def ended(self, session: Session) -> None:
        """Print the line if no step had a reward."""
        if not self._steps or self._is_rewarded:
            return
        turns = ""
        if session.worker.environment is not None and not self._is_answered:
            turns = "; data.environment answered no completion, so that every one is a single turn"
        print(
            f"every completion of steps {self._steps[0]} to {self._steps[-1]} has reward 0: the policy had nothing to "
            f"learn from{turns}",
            flush=True,
        )


def train_step(session: Session, config: GRPORunConfig, step: int) -> None:
    """Consume the step's rollouts from the data plane, score, update, log."""
    source = session.collector
    assert source is not None
    with session.timer.time("total_step_time"):
        collected, updated = source.consume(step, lambda rows: update_policy(session, config, step, rows))
    rollouts, batch = collected.rollouts, updated.filtered.batch
    trained = {**updated.metrics, **collected.counts, **updated.filtered.counts}
    metrics = log_step(session, config, step, collected, updated.filtered, trained)
    if collected.fates:
        session.logger.log_rows(map(asdict, collected.fates), "group_data", step)
    if collected.drawn:
        session.logger.log_rows(map(asdict, collected.drawn), "drawn_data", step)
    check_update(trained, step, session.logger.directory)
    check_rewards(collected, config.grpo.max_verifier_error_share, step, session.logger.directory)
    session.observer.trained(
        session,
        TrainedStep(
            step=step,
            served=collected.served,
            rollouts=rollouts,
            discarded=collected.discarded,
            fates=collected.fates,
            batch=batch,
            updates=updated.updates,
            metrics=metrics,
        ),
    )
    source.trained(step)


class Updated(NamedTuple):
    """The result of updating the policy on one step's rollouts."""

    filtered: Filtered
    updates: list[Update]
    metrics: Mapping[str, float]


def update_policy(session: Session, config: GRPORunConfig, step: int, rollouts: Rollouts) -> Updated:
    """Score rollouts and train on them."""
    time = session.timer.time
    with time("logprob_inference_prep"):
        batch = build_batch(rollouts.samples(), config.policy, pad_token_id=session.tokenizer.pad_token_id)
    with time("policy_and_reference_logprobs"):
        if not config.loss_fn.force_on_policy_ratio:
            batch.old_logprobs_BT = session.policy.logprobs(batch)
        batch.ref_logprobs_BT = session.policy.reference_logprobs(batch)
    with time("advantage_calculation"):
        batch.advantages_B = rollout_advantages(batch, config)
        filtered = mask_filtered(batch, rollouts, config.grpo, step)
    updates: list[Update] = []
    with time("policy_training"):
        metrics = session.policy.train(
            filtered.batch,
            shown(session, build_loss(config.loss_fn)),
            updates.append if session.observer.needs_gradients else None,
        )
    return Updated(filtered, updates, metrics)


def mask_filtered(batch: Batch, rollouts: Rollouts, config: GRPOConfig, step: int) -> Filtered:
    """Mask the rows that the filters exclude from the loss, and count them; advantages are computed before.

    Raises:
        TrainingError: the filters exclude every row.
    """
    counts: dict[str, float] = {}
    dropped_B = torch.zeros(batch.num_rows, dtype=torch.bool)
    if config.overlong_filtering:
        cut_off_B = torch.tensor(
            [completion.finish_reason == "length" for completion in rollouts.completions]
        )
        counts["num_overlong_filtered"] = float(cut_off_B.sum())
        batch = mask_overlong(batch, cut_off_B)
        dropped_B |= cut_off_B
    if config.zero_variance_filter:
        equal_B = ~groups_with_spread(torch.tensor(rollouts.scores.verified).double(), batch.group_ids_B)
        counts["num_zero_variance_filtered"] = float(equal_B.sum())
        batch = mask_rows(batch, equal_B)
        dropped_B |= equal_B
    if counts and not batch.num_valid_tokens:
        masked = " and ".join(
            f"{name} {count:.0f} of {batch.num_rows} rows" for name, count in counts.items()
        )
        raise TrainingError(
            f"step {step}: the filters leave nothing to train on ({masked}): raise policy.generation.max_new_tokens, "
            "take grpo.use_dynamic_sampling for the prompts, or leave a filter out"
        )
    return Filtered(batch, dropped_B.tolist(), counts)


def rollout_advantages(batch: Batch, config: GRPORunConfig) -> Tensor:
    """Return advantages_B of the rewards, after subtracting the KL to the reference if `kl_in=reward`."""
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
    return build_advantages(config.grpo.advantage)(rewards_B, batch.group_ids_B)
