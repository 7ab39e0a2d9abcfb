"""Data parallel over processes: every rank samples, rewards, scores and trains its share of the rows.

Every rank holds the whole batch (rows are small, activations are not), so that counts, advantages and filters need no
exchange; losses are divided by the counts of the whole batch, and the ranks' gradients are summed. Ranks are started
by `refrl.runtime.launcher`, as processes of this host or in a Ray cluster, or by `torchrun`.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from refrl.config import ClusterConfig, ConfigError
from refrl.lifeline import LISTENING, RENDEZVOUS, is_started, node, placed_by, watch_lifeline

ItemT = TypeVar("ItemT")

BUCKET_BYTES = 64 * 2**20
"""Gradients are summed in buckets of about this size."""
SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"
"""Variable that NCCL 2.31 and newer read: at 1, several ranks may use one device."""


class DivergenceError(ArithmeticError):
    """Ranks that must hold the same weights do not."""


@dataclass(frozen=True)
class World:
    """The processes of a run, seen from one of them. Alone, every method gives back what it was given."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    """The processes; None: all that were started."""

    def share(self, num_rows: int) -> slice:
        """Return this rank's rows: contiguous, in the order of the ranks, as equal in number as can be."""
        return slice(num_rows * self.rank // self.size, num_rows * (self.rank + 1) // self.size)

    def gather(self, items: Sequence[ItemT]) -> list[ItemT]:
        """Return the items of all ranks in their order."""
        if self.size == 1:
            return list(items)
        shares: list[list[ItemT]] = [[] for _ in range(self.size)]
        dist.all_gather_object(shares, list(items), group=self.group)
        return [item for share in shares for item in share]

    def sum_rows(self, values: Tensor) -> Tensor:
        """Sum a tensor over ranks, in place; each rank has filled its own rows and left 0 elsewhere."""
        if self.size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def sum_gradients(self, weights: Sequence[Tensor]) -> None:
        """Sum the gradients over ranks. A weight that has one on no rank keeps none."""
        if self.size == 1 or not weights:
            return
        present = torch.tensor([float(weight.grad is not None) for weight in weights])
        dist.all_reduce(present, group=self.group)
        used = [weight for weight, count in zip(weights, present.tolist(), strict=True) if count]
        gradients = []
        for weight in used:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            gradients.append(weight.grad)
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(flat, group=self.group)
            for gradient, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(part.view_as(gradient))

    def check_agreement(self, norm: float, weights: Sequence[Tensor]) -> None:
        """Hold the gradient norm and the sum of the weights after an update against those of the other ranks.

        Both come from sums that every rank has received alike, so they are equal to the bit or something is wrong.

        Raises:
            DivergenceError: a rank has others than rank 0.
        """
        if self.size == 1:
            return
        with torch.no_grad():
            total = float(torch.stack([weight.double().sum() for weight in weights]).sum())
        # As text: NaN is the same on every rank and not equal to itself.
        first, *others = self.gather([f"gradient norm {norm!r} and sum of weights {total!r}"])
        for rank, other in enumerate(others, start=1):
            if other != first:
                raise DivergenceError(f"after an update rank {rank} has {other}, and rank 0 has {first}")


ALONE = World()
"""A run of one process."""


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield gradients of one dtype together, up to `BUCKET_BYTES` (or one larger gradient)."""
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and (size + gradient.nbytes > BUCKET_BYTES or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.nbytes
    if bucket:
        yield bucket


@contextlib.contextmanager
def join(config: ClusterConfig) -> Iterator[World]:
    """Join the processes of the run, and leave them at the end; ranks other than 0 print nothing.

    Raises:
        ConfigError: the processes that were started are not those that the configuration names.
    """
    started = int(os.environ.get("WORLD_SIZE", "1")) if is_started() else 1
    if started != config.num_processes:
        raise ConfigError(
            f"{started} processes were started and cluster.num_processes={config.num_processes}: start them with "
            f"`refrl grpo` or `refrl sft`, or with torchrun --nproc-per-node={config.num_processes}"
        )
    watch_lifeline()
    if started == 1:
        yield ALONE
        return
    world = World(rank=int(os.environ["RANK"]), size=started)
    backend = "cpu:gloo,cuda:nccl" if config.device != "cpu" and torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backend, rank=world.rank, world_size=world.size, **_meeting(world))
    except dist.DistNetworkError as error:
        where = (
            os.environ.get(RENDEZVOUS) or f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        )
        raise ConfigError(
            f"the ranks cannot meet at {where}: {' '.join(str(error).split())[:200]}; if another process has the port, "
            "give torchrun another --master-port"
        ) from error
    quiet = contextlib.redirect_stdout(io.StringIO()) if world.rank else contextlib.nullcontext()
    with quiet:
        yield world
    # Not after an error: a peer that waits in a collective would be waited for.
    dist.destroy_process_group()


def _meeting(world: World) -> dict[str, Any]:
    """Return where the ranks meet, as a word of `init_process_group`."""
    url = os.environ.get(RENDEZVOUS, "env://")
    if not url.startswith("tcp://"):
        return {"init_method": url}
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    listening = os.environ.get(LISTENING)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host,
        int(port),
        world.size,
        is_master=listening is not None,
        master_listen_fd=None if listening is None else int(listening),
    )
    return {"store": store}


def groups_of_processes() -> frozenset[dist.ProcessGroup]:
    """Return the groups that this process belongs to."""
    return frozenset(dist.distributed_c10d._world.pg_map)  # torch 2.13 has no public name for it


def leave_groups(groups: Iterable[dist.ProcessGroup]) -> None:
    """Give up those of the groups that are still there: threads of each look for messages a hundred times a second.

    Groups of NCCL have no such threads, and are kept: runs on GPUs that gave up several hung.
    """
    if torch.cuda.is_available():
        return
    for group in groups_of_processes() & frozenset(groups):
        dist.destroy_process_group(group)


def placement(world: World) -> dict[str, Any]:
    """Return what started the ranks, and where each of them is: its node and process."""
    return {"by": placed_by(), "ranks": world.gather([{"node": node(), "pid": os.getpid()}])}


def local_rank() -> int:
    """Return the rank among the processes of this host that see the same devices: the number of its own."""
    return int(os.environ.get("LOCAL_RANK", "0")) if is_started() else 0


def local_device(config: ClusterConfig) -> torch.device:
    """Return the device of this process, which is the current one from now on.

    Raises:
        ConfigError: CUDA is asked for and there is none, or not enough of it.
    """
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise ConfigError("cluster.device=cuda, and torch finds no CUDA device; use cluster.device=cpu")
    if not has_cuda or config.device == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank() >= count and os.environ.get(SHARING) != "1":
        raise ConfigError(
            f"cluster.num_processes={config.num_processes} and {count} CUDA devices: every process of a host needs "
            f"one of its own; lower it, use cluster.device=cpu, or share them with {SHARING}=1 (NCCL 2.31 or newer)"
        )
    torch.cuda.set_device(local_rank() % count)
    # cuDNN's attention makes a plan for each new length, which costs seconds in the first steps of a run.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device("cuda", local_rank() % count)
