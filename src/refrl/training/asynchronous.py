"""Rollout collection for a GRPO session: sampled step by step or asynchronously, always through the data plane."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace

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
    data_plane_processes,
    opened_data_plane,
)
from refrl.errors import TrainingError
from refrl.generation.pooled import PooledSampler, Replica
from refrl.policy.base import Policy
from refrl.rollout.asynchronous import AsyncCollector
from refrl.rollout.collect import Collector, SyncCollector
from refrl.rollout.replay import ReplayBuffer
from refrl.rollout.sync import RolloutWorker
from refrl.timing import Timer
from refrl.training.build_generation import build_generator, build_weight_sync
from refrl.training.session import Session


def build_replicas(
    config: GRPORunConfig, policy: Policy, tokenizer: PreTrainedTokenizerBase
) -> list[Replica]:
    """Return the generation engines of asynchronous rollouts, with the policy's weights.

    Raises:
        ConfigError: the model cannot be loaded.
        refrl.generation.process.GeneratorLostError: an engine's process ended while it started.
    """
    _, weight = next(policy.named_weights())
    replicas: list[Replica] = []
    for number in range(config.grpo.async_grpo.num_replicas):
        engine = build_generator(config.policy, tokenizer, device=weight.device, number=number)
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


@contextmanager
def collecting(session: Session, config: GRPORunConfig) -> Iterator[Session]:
    """Yield the session with a rollout source; check at the end that the data plane is empty.

    Raises:
        ConfigError: a replica's model cannot be loaded, or the data plane cannot be started.
        refrl.generation.process.GeneratorLostError: a replica's process ended while it started.
        TrainingError: the data plane still holds samples that no step has trained on.
    """
    with opened_data_plane(config.data_plane) as client:
        buffer = build_buffer(config, client)
        collect = _collecting_asynchronously if config.grpo.async_grpo.enabled else _collecting_for_each_step
        with collect(session, config, buffer) as collecting:
            yield collecting


@contextmanager
def _collecting_for_each_step(
    session: Session, config: GRPORunConfig, buffer: ReplayBuffer
) -> Iterator[Session]:
    log_parts(session, config, ())
    source = SyncCollector(
        build_collector(session, config, session.worker, session.timer),
        buffer,
        prepare=session.prepare_for_generation,
        version=lambda: session.policy.version,
    )
    yield replace(session, collector=source)
    left = buffer.close()
    if left:
        raise TrainingError(f"groups {[group.number for group in left]} were sampled and not trained on")


@contextmanager
def _collecting_asynchronously(
    session: Session, config: GRPORunConfig, buffer: ReplayBuffer
) -> Iterator[Session]:
    replicas = build_replicas(config, session.policy, session.tokenizer)
    log_parts(session, config, replicas)
    sampler = PooledSampler(replicas, continues=config.grpo.async_grpo.in_flight_weight_updates)
    collector = AsyncCollector(
        build_collector(session, config, replace(session.worker, generator=sampler), Timer()),
        sampler,
        buffer,
        build_schedule(config.grpo),
        timer=session.timer,
        version=lambda: session.policy.version,
        # A run that writes no checkpoint may still resume from one.
        progress=session.progress if config.checkpointing.saves or session.attempt.checkpoint else None,
    )
    with collector:
        yield replace(session, collector=collector)
    left = [asdict(fate) for fate in collector.unused()]
    session.logger.log_rows(left, "unused_group_data", config.grpo.max_num_steps)


def build_collector(
    session: Session, config: GRPORunConfig, worker: RolloutWorker, timer: Timer
) -> Collector:
    """Return a collector that samples batches of rollouts with this worker."""
    return Collector(
        prompts=session.prompts,
        worker=worker,
        verifier=session.verifier,
        sampling=session.sampling,
        timer=timer,
        config=config.grpo,
    )


def log_parts(session: Session, config: GRPORunConfig, replicas: Sequence[Replica]) -> None:
    """Write `parts.json`: the process id of each part of the run by name, for tools that stop or slow one."""
    parts = {"trainer": os.getpid(), **data_plane_processes(config.data_plane)}
    for replica in replicas:
        pid = getattr(replica.engine, "pid", None)
        if pid is not None:
            parts[replica.name] = pid
    session.logger.log_parts(parts)
