"""Weights that several processes hold alike stay alike."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from refrl.distributed import DivergenceError, World
from refrl.policy.dtensor.meshes import Meshes


@torch.no_grad()
def check_replicas(norm: float, weights: Mapping[str, Tensor], meshes: Meshes, world: World) -> None:
    """Hold the gradient norm, and the sum of each weight, against those of the processes that must have the same.

    Both come from sums that all of them have received alike, so they are equal to the bit or something is wrong.

    Raises:
        DivergenceError: names the first weight that differs.
    """
    first, *others = world.gather([repr(norm)])  # as text: NaN is not equal to itself
    for rank, other in enumerate(others, start=1):
        if other != first:
            raise DivergenceError(
                f"after an update rank {rank} has gradient norm {other}, and rank 0 has {first}"
            )
    for mesh in (meshes.tensor, meshes.expert_copies):
        _compare({name: weight for name, weight in weights.items() if not _is_cut(weight, mesh)}, mesh)


def _is_cut(weight: Tensor, mesh: DeviceMesh) -> bool:
    """Return whether the processes of a mesh hold different parts of a weight."""
    if not isinstance(weight, DTensor):
        return False
    names = weight.device_mesh.mesh_dim_names or ()
    own, cut = set(mesh.mesh_dim_names or ()), dict(zip(names, weight.placements, strict=True))
    if any(name in own and not placement.is_replicate() for name, placement in cut.items()):
        return True
    # Shared experts are no part of `shards`, and everything else is spread over the processes of expert copies.
    return "expert_copies" in own and "experts" not in names


def _compare(weights: Mapping[str, Tensor], mesh: DeviceMesh) -> None:
    if mesh.size() == 1 or not weights:
        return
    local = [weight.to_local() if isinstance(weight, DTensor) else weight for weight in weights.values()]
    own_W = torch.stack([weight.double().sum() for weight in local])
    parts = [torch.empty_like(own_W) for _ in range(mesh.size())]
    dist.all_gather(parts, own_W, group=mesh.get_group())
    for other, part_W in enumerate(parts):
        differs_W = (part_W != parts[0]) & ~(part_W.isnan() & parts[0].isnan())
        if bool(differs_W.any()):
            name = list(weights)[int(differs_W.nonzero()[0])]
            raise DivergenceError(
                f"after an update {name} is no longer the same on processes {other} and 0 of those that hold it alike "
                f"({', '.join(mesh.mesh_dim_names or ())}): {int(differs_W.sum())} of {len(weights)} weights differ"
            )
