"""Which processes do what: rows, sequences, layers and experts are each shared along one dimension of a mesh."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from refrl.config import ConfigError, DTensorConfig
from refrl.distributed import World


@dataclass(frozen=True)
class Meshes:
    """The processes of a run by dimension, seen from one of them.

    Ranks are laid out as data x context x tensor, the last one fastest.
    """

    data: World
    """Share the rows of a batch."""
    context: DeviceMesh
    """Share every sequence of the same rows."""
    tensor: DeviceMesh
    """Share every layer, on the same tokens."""
    shards: DeviceMesh
    """Data and context together: no two have the same tokens, and the weights are spread over them."""
    experts: DeviceMesh
    """Share the experts; a part of `shards`."""
    expert_copies: DeviceMesh
    """Have the same experts, and other tokens."""

    def sizes(self) -> dict[str, int]:
        """Return the number of processes of each dimension."""
        return {
            "data": self.data.size,
            "context": self.context.size(),
            "tensor": self.tensor.size(),
            "expert": self.experts.size(),
        }


def make_meshes(config: DTensorConfig, world: World, device: torch.device) -> Meshes:
    """Return the meshes of a run; a process that is alone forms a group of one.

    Raises:
        ConfigError: the processes cannot be laid out so.
    """
    context, tensor, experts = (
        config.context_parallel_size,
        config.tensor_parallel_size,
        config.expert_parallel_size,
    )
    data = world.size // (context * tensor)
    if data * context * tensor != world.size:
        raise ConfigError(
            f"cluster.num_processes={world.size} is no multiple of policy.dtensor_cfg's tensor_parallel_size={tensor} "
            f"x context_parallel_size={context}: change one of them"
        )
    if (data * context) % experts:
        raise ConfigError(
            f"policy.dtensor_cfg.expert_parallel_size={experts} does not divide the {data * context} processes that "
            "have different tokens: lower it, or raise cluster.num_processes"
        )
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh(
        device.type, (data, context, tensor), mesh_dim_names=("data", "context", "tensor")
    )
    by_expert = init_device_mesh(
        device.type,
        (data * context // experts, experts, tensor),
        mesh_dim_names=("expert_copies", "experts", "expert_tensor"),
    )
    rows = mesh["data"]
    return Meshes(
        data=World(rank=rows.get_local_rank(), size=data, group=rows.get_group()),
        context=mesh["context"],
        tensor=mesh["tensor"],
        shards=mesh["data", "context"]._flatten("shards"),
        experts=by_expert["experts"],
        expert_copies=by_expert["expert_copies"],
    )
