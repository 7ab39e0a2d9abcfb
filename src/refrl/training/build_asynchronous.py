"""From configuration to the parts that only asynchronous rollouts have, as `refrl.training.build` for all others."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from refrl.algorithms.schedule import Schedule, make_schedule
from refrl.config import GRPOConfig, GRPORunConfig
from refrl.generation.pooled import Replica
from refrl.policy.base import Policy
from refrl.training.build import build_generator, build_weight_sync


def build_replicas(
    config: GRPORunConfig, policy: Policy, tokenizer: PreTrainedTokenizerBase
) -> list[Replica]:
    """Return the generation engines of asynchronous rollouts, with the policy's weights, on the policy's device.

    Raises:
        ConfigError: the model cannot be loaded.
        refrl.generation.process.GeneratorLostError: the process that one is to run in ended.
    """
    _, weight = next(policy.named_weights())
    replicas: list[Replica] = []
    for number in range(config.grpo.async_grpo.num_replicas):
        engine = build_generator(config.policy, tokenizer, device=weight.device)
        sync = build_weight_sync(config.policy.generation, policy, engine)
        replicas.append(Replica(f"generation/{number}", engine, sync))
    return replicas


def build_schedule(config: GRPOConfig) -> Schedule:
    """Return how old the samples of asynchronous rollouts may be, and after which steps their weights are synced."""
    return make_schedule(
        prompts_per_step=config.num_prompts_per_step,
        prompts_per_forward_backward=config.num_prompts_per_step,
        max_staleness=config.async_grpo.max_trajectory_age_steps,
    )
