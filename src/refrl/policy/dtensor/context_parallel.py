"""Context parallelism: each process has a part of every sequence, and attends to the keys and values of all.

Keys and values are gathered before attention; in the backward pass the gradients that other processes' queries have
for them are summed. What each may see is in the mask, so packed rows need nothing more.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

ATTENTION = "refrl_context_parallel"


def share_sequences(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Let the attention of a model run over parts of sequences, in place."""
    AttentionInterface.register(ATTENTION, _attend)
    module: Any
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            module.context_group = mesh.get_group()
    model.config._attn_implementation = ATTENTION


def sum_of_parts(part: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the sum over the processes of a mesh; in the backward pass each keeps the gradient of its own part."""
    if mesh.size() == 1:
        return part
    summed: Tensor = _SumOfParts.apply(part, mesh.get_group())
    return summed


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of Transformers' interface: [batch, heads, part of the sequence, width] in, heads third out."""
    key, value = (_Gathered.apply(states, module.context_group) for states in (key, value))
    output = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


class _Gathered(torch.autograd.Function):
    """The parts of all processes, laid end to end along the third dimension."""

    @staticmethod
    def forward(context: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        context.group = group
        parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size())]
        dist.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts, dim=2)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        summed = gradient.contiguous()
        dist.all_reduce(summed, group=context.group)
        return summed.chunk(context.group.size(), dim=2)[context.group.rank()].contiguous(), None


class _SumOfParts(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        summed = part.clone()
        dist.all_reduce(summed, group=group)
        return summed

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
