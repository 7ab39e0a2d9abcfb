"""Tensor parallelism of a layer with an adapter: the adapter is cut as the layer under it.

Of a layer whose outputs are cut, B is cut by its outputs and A is whole; of one whose inputs are cut, A is cut by its
inputs and B is whole. What is whole has a gradient that is partial on each process; DTensor sums it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from refrl.policy.lora import LoraLinear


def with_adapters(model: nn.Module, plan: Mapping[str, ParallelStyle]) -> dict[str, ParallelStyle]:
    """Return a plan in which the layers with an adapter are cut with it."""
    return {
        name: Adapted(style)
        if isinstance(model.get_submodule(name), LoraLinear)
        and isinstance(style, ColwiseParallel | RowwiseParallel)
        else style
        for name, style in plan.items()
    }


class Adapted(ParallelStyle):
    """A style of plain linear layers, for one with an adapter."""

    def __init__(self, style: ColwiseParallel | RowwiseParallel) -> None:
        """Take over what goes in and what comes out."""
        super().__init__()
        self._given: Placement = style.input_layouts[0]
        self._returned: Placement = style.output_layouts[0]
        cut: dict[str, Placement]
        if isinstance(style, ColwiseParallel):
            self._input: Placement = Replicate()
            cut = {"weight": Shard(0), "bias": Shard(0), "lora_B.weight": Shard(0)}
        else:
            self._input = Shard(-1)
            cut = {"weight": Shard(1), "lora_A.weight": Shard(1)}
        self._cut: Mapping[str, Placement] = cut

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, whole in list(module.named_parameters()):
            owner, _, key = name.rpartition(".")
            part = distribute_tensor(
                whole.detach(), device_mesh, [self._cut.get(name, Replicate())], src_data_rank=None
            )
            module.get_submodule(owner).register_parameter(
                key, nn.Parameter(part, requires_grad=whole.requires_grad)
            )
        module.register_forward_pre_hook(lambda _, inputs: (self._taken(inputs[0], device_mesh),))
        module.register_forward_hook(lambda _, inputs, output: self._left(output))
        return module

    def _taken(self, states: Tensor, mesh: DeviceMesh) -> DTensor:
        spread: Any = states
        if not isinstance(states, DTensor):
            spread = DTensor.from_local(states, mesh, [self._given], run_check=False)
        taken: DTensor = spread.redistribute(placements=[self._input])
        return taken

    def _left(self, output: DTensor) -> Tensor:
        return output.redistribute(placements=[self._returned]).to_local()
