"""`logger` and `cluster`: where a run writes, and what it computes on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from refrl.config.base import Directory, Section


class LoggerConfig(Section):
    """Where metrics go."""

    log_dir: Directory
    """Directory of everything that the run logs; created by the run."""
    tensorboard_enabled: bool = True
    """Write the scalars to `<log_dir>/tensorboard`."""
    observers: tuple[str, ...] = ()
    """Observers of the run, each by the name that an installed package offers (entry points of `refrl.observers`) or by
    import path: a callable that takes the configuration and returns a `refrl.training.session.Observer`."""
    log_train_data: bool = True
    """Write the rows of each step to `train_data_step<N>.jsonl`, and those of a validation to
    `validation_data_step<N>.jsonl`."""


MAX_THREADS = 1024
"""Torch starts any requested number of threads, and crashes with a segmentation fault if the system has no more."""


class ClusterConfig(Section):
    """The processes and devices of the run."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` uses CUDA if available."""
    num_threads: int | None = Field(default=None, gt=0, le=MAX_THREADS)
    """Threads of a CPU operation, at most 1024; None leaves torch's default."""
    num_processes: int = Field(default=1, gt=0)
    """Processes that each sample, reward, score and train their share of the rows. If more than one, refrl starts them,
    or `torchrun --nproc-per-node`, with the same number."""
    placement: Literal["process", "ray"] = "process"
    """Where refrl starts them: on this host (a single one is the command's own process), or each in an actor of a
    Ray cluster, spread over its nodes, with its own GPU if training uses one."""
    ray_address: str | None = None
    """Ray cluster to join if ranks or another part are placed on Ray, as `host:port` of its head; None starts one on
    this host that stops with the run."""
