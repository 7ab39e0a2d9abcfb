"""The processes of a run as Megatron-core divides them: by tensors, layers, tokens, experts and rows."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakSet

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from refrl.config import ConfigError, MegatronConfig
from refrl.distributed import DivergenceError, World, groups_of_processes, leave_groups
from refrl.policy.megatron.conversion import Link

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, eq=False)
class Parallel:
    """The process groups that this rank is in."""

    config: MegatronConfig

    @property
    def tensor(self) -> Any:
        """Ranks that have parts of the same tensors."""
        return parallel_state.get_tensor_model_parallel_group()

    @property
    def pipeline(self) -> Any:
        """Ranks that have the layers of one model, in order."""
        return parallel_state.get_pipeline_model_parallel_group()

    @property
    def context(self) -> Any:
        """Ranks that have tokens of the same rows."""
        return parallel_state.get_context_parallel_group()

    @property
    def expert(self) -> Any:
        """Ranks that have different experts."""
        return parallel_state.get_expert_model_parallel_group()

    @property
    def expert_tensor(self) -> Any:
        """Ranks that have parts of the same expert's tensors."""
        return parallel_state.get_expert_tensor_parallel_group()

    def tensor_of(self, link: Link) -> Any:
        """Return the ranks that have parts of the same tensors of a link."""
        return self.tensor if link.expert is None else self.expert_tensor

    @property
    def data(self) -> Any:
        """Ranks that have different rows."""
        return parallel_state.get_data_parallel_group()

    @property
    def model(self) -> Any:
        """Ranks that have different parts of one model, experts aside."""
        return parallel_state.get_model_parallel_group()

    @property
    def expert_model(self) -> Any:
        """Ranks that have different parts of one model, experts included."""
        return parallel_state.get_expert_tensor_model_pipeline_parallel_group()

    @property
    def rows(self) -> World:
        """Who shares the rows of a batch."""
        return World(rank=self.data.rank(), size=self.data.size(), group=self.data)

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank has the head, and so the logits."""
        return self.pipeline.rank() == self.pipeline.size() - 1

    @property
    def sequence_multiple(self) -> int:
        """The padded length of rows is a multiple of this."""
        tensor = self.tensor.size() if self.config.sequence_parallel else 1
        context = self.context.size()
        return tensor * (2 * context if context > 1 else 1)

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return dist.get_world_size() == 1

    def sizes(self) -> dict[str, int]:
        """Return how many processes lie along each dimension of the groups."""
        return {
            "data": self.data.size(),
            "tensor": self.tensor.size(),
            "pipeline": self.pipeline.size(),
            "context": self.context.size(),
            "expert": self.expert.size(),
        }

    def sizes_of_groups(self) -> dict[str, int]:
        """Return the sizes of the existing groups by the option that sets each."""
        return {
            "tensor_model_parallel_size": self.tensor.size(),
            "pipeline_model_parallel_size": self.pipeline.size(),
            "context_parallel_size": self.context.size(),
            "expert_model_parallel_size": self.expert.size(),
            "expert_tensor_parallel_size": self.expert_tensor.size(),
        }

    def objects_from_last_stage(self, items: list[ItemT]) -> list[ItemT]:
        """Return what the last stage has, on every stage."""
        if self.pipeline.size() == 1:
            return items
        box = [items]
        last = dist.get_global_rank(self.pipeline, self.pipeline.size() - 1)
        dist.broadcast_object_list(box, src=last, group=self.pipeline)
        return box[0]

    def check_agreement(self, norm: float, weights: Mapping[str, Tensor], links: Mapping[str, Link]) -> None:
        """Hold the gradient norm, and the sum of the weights that other ranks hold too, against theirs.

        Raises:
            refrl.distributed.DivergenceError: a rank has others than the first of its group.
        """
        if self.alone:
            return
        dense = [weight for name, weight in weights.items() if links[name].expert is None]
        with torch.no_grad():
            total = float(torch.stack([weight.double().sum() for weight in dense]).sum())
        # As text: NaN is the same on every rank and not equal to itself.
        mine = f"gradient norm {norm!r} and sum of weights {total!r}"
        first, *others = self.rows.gather([mine])
        for rank, other in enumerate(others, start=1):
            if other != first:
                raise DivergenceError(
                    f"after an update data-parallel rank {rank} has {other}, and rank 0 has {first}"
                )

    def from_last_stage(self, values: Tensor) -> Tensor:
        """Give every stage what the last one has; filled in place."""
        if self.pipeline.size() > 1:
            last = dist.get_global_rank(self.pipeline, self.pipeline.size() - 1)
            dist.broadcast(values, src=last, group=self.pipeline)
        return values


_LIVING: WeakSet[Parallel] = WeakSet()
"""Megatron-core keeps the groups of one division of the processes for the whole process."""
_GROUPS: set[dist.ProcessGroup] = set()
"""Those groups: Megatron-core drops them without destroying them."""


def join_parallel(config: MegatronConfig, world: World) -> Parallel:
    """Make the process groups of a run, once a process.

    Raises:
        ConfigError: the processes do not divide as the configuration says, or groups of other sizes are there.
    """
    sizes = {
        "tensor_model_parallel_size": config.tensor_model_parallel_size,
        "pipeline_model_parallel_size": config.pipeline_model_parallel_size,
        "context_parallel_size": config.context_parallel_size,
        "expert_model_parallel_size": config.expert_model_parallel_size,
        "expert_tensor_parallel_size": config.expert_tensor_size,
    }
    _check_sizes(config, world)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    parallel = Parallel(config)
    if parallel_state.model_parallel_is_initialized() and parallel.sizes_of_groups() != sizes:
        _leave_groups()
    if not parallel_state.model_parallel_is_initialized():
        before = groups_of_processes()
        parallel_state.initialize_model_parallel(**sizes)
        _GROUPS.update(groups_of_processes() - before)
        if torch.cuda.is_available():
            # Sequence parallelism reads the random state of its group, though nothing draws from it.
            model_parallel_cuda_manual_seed(0)
    _LIVING.add(parallel)
    return parallel


def _leave_groups() -> None:
    """Give up the groups of policies that are gone.

    Raises:
        ConfigError: one is still there.
    """
    gc.collect()
    if _LIVING:
        raise ConfigError(
            "policy.megatron_cfg: another policy of this process has Megatron-core groups of other sizes; use a "
            "process for each"
        )
    parallel_state.destroy_model_parallel()
    leave_groups(_GROUPS)
    _GROUPS.clear()


def _check_sizes(config: MegatronConfig, world: World) -> None:
    where = "policy.megatron_cfg"
    dense = (
        config.tensor_model_parallel_size * config.pipeline_model_parallel_size * config.context_parallel_size
    )
    if world.size % dense:
        raise ConfigError(
            f"{where}: tensor, pipeline and context parallel sizes make {dense} processes of one model, which do not "
            f"divide cluster.num_processes={world.size}: start a multiple of {dense}"
        )
    experts = (
        config.expert_tensor_size * config.pipeline_model_parallel_size * config.expert_model_parallel_size
    )
    if world.size % experts:
        raise ConfigError(
            f"{where}: expert_model_parallel_size={config.expert_model_parallel_size} with the other sizes needs a "
            f"multiple of {experts} processes, and cluster.num_processes={world.size}"
        )
