"""A GRPO session whose rollouts are sampled beside the training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

from refrl.config import GRPORunConfig
from refrl.generation.pooled import PooledSampler, Replica
from refrl.rollout.asynchronous import AsyncCollector
from refrl.rollout.collect import Collector
from refrl.timing import Timer
from refrl.training.build_asynchronous import build_replicas, build_schedule
from refrl.training.session import Session


@contextmanager
def collecting(session: Session, config: GRPORunConfig) -> Iterator[Session]:
    """Yield the session with a collector, where rollouts are asynchronous; else as it is.

    Raises:
        ConfigError: the model of a replica cannot be loaded.
        refrl.generation.process.GeneratorLostError: the process of a replica ended while it started.
    """
    if not config.grpo.async_grpo.enabled:
        yield session
        return
    replicas = build_replicas(config, session.policy, session.tokenizer)
    log_parts(session, replicas)
    sampler = PooledSampler(replicas, continues=config.grpo.async_grpo.in_flight_weight_updates)
    collector = AsyncCollector(
        Collector(
            prompts=session.prompts,
            worker=replace(session.worker, generator=sampler),
            verifier=session.verifier,
            sampling=session.sampling,
            timer=Timer(),
            config=config.grpo,
        ),
        sampler,
        build_schedule(config.grpo),
        timer=session.timer,
        version=lambda: session.policy.version,
    )
    with collector:
        yield replace(session, collector=collector)
        left = [asdict(fate) for fate in collector.unused()]
    session.logger.log_rows(left, "unused_group_data", config.grpo.max_num_steps)


def log_parts(session: Session, replicas: list[Replica]) -> None:
    """Write `parts.json`: the process of each part of the run, by name, for whoever wants to disturb one."""
    parts = {"trainer": os.getpid()}
    for replica in replicas:
        pid = getattr(replica.engine, "pid", None)
        if pid is not None:
            parts[replica.name] = pid
    session.logger.log_parts(parts)
