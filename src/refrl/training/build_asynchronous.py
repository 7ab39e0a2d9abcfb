"""Builds the parts between sampling and training from the configuration (the others: `refrl.training.build`)."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from refrl.algorithms.schedule import Schedule, make_schedule
from refrl.config import AsyncGRPOConfig, GRPOConfig, GRPORunConfig
from refrl.data_plane import (
    BaseRolloutFilter,
    DataPlaneClient,
    LengthFilter,
    StalenessFilter,
    WholeGroups,
    ZeroVarianceFilter,
)
from refrl.generation.pooled import Replica
from refrl.policy.base import Policy
from refrl.rollout.replay import ReplayBuffer
from refrl.training.build_generation import build_generator, build_weight_sync


def build_replicas(
    config: GRPORunConfig, policy: Policy, tokenizer: PreTrainedTokenizerBase
) -> list[Replica]:
    """Return the generation engines of asynchronous rollouts, with the policy's weights, on the policy's device.

    Raises:
        ConfigError: the model cannot be loaded.
        refrl.generation.process.GeneratorLostError: an engine's process ended while it started.
    """
    _, weight = next(policy.named_weights())
    replicas: list[Replica] = []
    for number in range(config.grpo.async_grpo.num_replicas):
        engine = build_generator(config.policy, tokenizer, device=weight.device)
        sync = build_weight_sync(config.policy.generation, policy, engine)
        replicas.append(Replica(f"generation/{number}", engine, sync))
    return replicas


def build_schedule(config: GRPOConfig) -> Schedule:
    """Return how stale samples may be, and after which steps the sampler's weights are synced."""
    return make_schedule(
        prompts_per_step=config.num_prompts_per_step,
        prompts_per_forward_backward=config.num_prompts_per_step,
        max_staleness=config.async_grpo.max_trajectory_age_steps,
    )


def build_buffer(config: GRPORunConfig, client: DataPlaneClient) -> ReplayBuffer:
    """Return the buffer that rollouts pass through on their way to the trainer.

    A synchronous step consumes what it has just put. Asynchronous rollouts wait for the next batches, and the buffer
    holds one batch more than the staleness window, so that groups that are too old do not block new ones.
    """
    grpo = config.grpo
    if not grpo.async_grpo.enabled:
        return ReplayBuffer(
            client,
            groups_per_step=grpo.num_prompts_per_step,
            group_size=grpo.num_generations_per_prompt,
            capacity=grpo.num_prompts_per_step,
            timeout_s=0.0,
        )
    num_rows = grpo.num_prompts_per_step * grpo.num_generations_per_prompt
    updates_per_step = num_rows // config.policy.train_global_batch_size
    max_age = build_schedule(grpo).max_staleness
    return ReplayBuffer(
        client,
        groups_per_step=grpo.num_prompts_per_step,
        group_size=grpo.num_generations_per_prompt,
        capacity=(max_age + 2) * grpo.num_prompts_per_step,
        filters=[StalenessFilter(max_age * updates_per_step), *build_filters(grpo.async_grpo)],
    )


def build_filters(config: AsyncGRPOConfig) -> list[BaseRolloutFilter]:
    """Return the filters that drop groups for reasons other than age; they use the verifier's reward and lengths."""
    filters: list[BaseRolloutFilter] = []
    if config.drop_longer_than is not None:
        filters.append(WholeGroups(LengthFilter(config.drop_longer_than)))
    if config.drop_zero_variance:
        filters.append(ZeroVarianceFilter())
    return filters
