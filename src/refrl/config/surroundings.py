"""What a run computes on, and where it writes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from refrl.config.base import Section


class LoggerConfig(Section):
    """Where metrics go."""

    log_dir: str
    """Folder of everything that the run logs; made new."""
    tensorboard_enabled: bool = True
    """Write the scalars to `<log_dir>/tensorboard`."""
    observers: tuple[str, ...] = ()
    """What watches the run from inside, each by the name that an installed package offers (entry points of
    `refrl.observers`) or by import path: called with the configuration, it gives a
    `refrl.training.session.Observer`."""
    log_train_data: bool = True
    """Write the rows of each step to `train_data_step<N>.jsonl`, and those of a validation to
    `validation_data_step<N>.jsonl`."""


MAX_THREADS = 1024
"""Torch starts as many threads as it is told, and ends with a segmentation fault where the system has no more."""


class ClusterConfig(Section):
    """What the run computes on."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA where there is one."""
    num_threads: int | None = Field(default=None, gt=0, le=MAX_THREADS)
    """Threads of a CPU operation, at most 1024; None leaves torch's own choice."""
    num_processes: int = Field(default=1, gt=0)
    """Processes that each sample, reward, score and train their share of the rows. More than one are started by
    refrl itself, or by `torchrun --nproc-per-node`, which must start as many."""
    placement: Literal["process", "ray"] = "process"
    """Where refrl starts them: on this host, a single one being the command's own process; or each in an actor of a
    Ray cluster, spread over its nodes, with a GPU of its own where training computes on one."""
    ray_address: str | None = None
    """Ray cluster to join where ranks or another part are placed on Ray, as `host:port` of its head; None starts one on
    this host that ends with the run."""
