"""Expert parallelism: each process has some of the experts, and runs them for the tokens of all.

Tokens and their routing are gathered, every process runs its own experts on them, and each token's owner gets the sum.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers import PreTrainedModel

from refrl.config import ConfigError


def share_experts(model: PreTrainedModel, mesh: DeviceMesh) -> list[nn.Parameter]:
    """Spread the experts of a model over a mesh, in place; return their weights.

    Raises:
        ConfigError: the model has none of a form that is known, or the mesh does not divide their number.
    """
    weights: list[nn.Parameter] = []
    module: Any
    for name, module in model.named_modules():
        if not name.endswith(".experts"):
            continue
        _check(model, module, mesh.size())
        for key, whole in list(module.named_parameters(recurse=False)):
            own = distribute_tensor(whole.detach(), mesh, [Shard(0)], src_data_rank=None)
            weight = nn.Parameter(own, requires_grad=whole.requires_grad)
            module.register_parameter(key, weight)
            weights.append(weight)
        module.num_experts //= mesh.size()
        module._is_expert_parallel = True  # makes Transformers treat expert `num_experts` as no expert
        module.forward = _SharedExperts(module, mesh)
    if not weights:
        raise ConfigError(
            f"policy.dtensor_cfg.expert_parallel_size={mesh.size()}: {type(model).__name__} has no experts; set it to 1"
        )
    return weights


class _SharedExperts:
    """The forward pass of a module of experts [tokens, width], of which this process has some."""

    def __init__(self, module: nn.Module, mesh: DeviceMesh) -> None:
        self._module, self._group = module, mesh.get_group()
        self._num_own = cast(int, module.num_experts)

    def __call__(self, hidden_ND: Tensor, experts_NK: Tensor, weights_NK: Tensor) -> Tensor:
        size, rank = self._group.size(), self._group.rank()
        longest = torch.tensor(len(hidden_ND), device=hidden_ND.device)
        dist.all_reduce(longest, dist.ReduceOp.MAX, group=self._group)
        missing = int(longest) - len(hidden_ND)
        none = self._num_own * size  # tokens that are not there go to no expert
        padded = [
            torch.cat([values, values.new_full((missing, values.shape[1]), fill)])
            for values, fill in ((hidden_ND, 0), (weights_NK, 0), (experts_NK, none))
        ]
        hidden_MD, weights_MK = (_Gathered.apply(values, self._group) for values in padded[:2])
        experts_MK = _gather(padded[2], self._group) - rank * self._num_own
        is_own_MK = (experts_MK >= 0) & (experts_MK < self._num_own)
        own = {
            key: weight.to_local().to(hidden_ND.dtype)
            for key, weight in self._module.named_parameters(recurse=False)
            if isinstance(weight, DTensor)
        }
        output_MD = _run(self._module, own, hidden_MD, experts_MK.where(is_own_MK, self._num_own), weights_MK)
        output: Tensor = _Scattered.apply(output_MD, self._group)
        return output[: len(hidden_ND)]


def _run(module: Any, weights: dict[str, Tensor], *inputs: Tensor) -> Tensor:
    """Run the module's own code with other weights."""
    kept = {key: module._parameters.pop(key) for key in weights}
    try:
        for key, weight in weights.items():
            object.__setattr__(module, key, weight)
        output: Tensor = type(module).forward(module, *inputs)
    finally:
        for key, weight in kept.items():
            object.__delattr__(module, key)
            module._parameters[key] = weight
    return output


def _gather(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part.contiguous(), group=group)
    return torch.cat(parts)


def _own_part_of_sum(whole: Tensor, group: dist.ProcessGroup) -> Tensor:
    summed = whole.contiguous().clone()
    dist.all_reduce(summed, group=group)
    return summed.chunk(group.size())[group.rank()].contiguous()


class _Gathered(torch.autograd.Function):
    """The parts of all; the gradient of each is summed and goes back to its owner."""

    @staticmethod
    def forward(context: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        context.group = group
        return _gather(part, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _own_part_of_sum(gradient, context.group), None


class _Scattered(torch.autograd.Function):
    """This process's part of the sum; every process gets the gradient of all parts."""

    @staticmethod
    def forward(context: Any, whole: Tensor, group: dist.ProcessGroup) -> Tensor:
        context.group = group
        return _own_part_of_sum(whole, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _gather(gradient, context.group), None


def _check(model: PreTrainedModel, module: Any, size: int) -> None:
    number = getattr(module, "num_experts", None)
    fused = all(weight.ndim == 3 and weight.shape[0] == number for weight in module.parameters())
    if number is None or not fused:
        raise ConfigError(
            f"policy.dtensor_cfg.expert_parallel_size={size}: the experts of {type(model).__name__} are not in one "
            "tensor for all, which is the form that can be spread; set it to 1"
        )
    if number % size:
        raise ConfigError(
            f"policy.dtensor_cfg.expert_parallel_size={size} does not divide the model's {number} experts: lower it"
        )
