"""The low-rank adapters of one parallel linear layer of Megatron-core.

A parallel layer holds several Hugging Face layers (queries, keys and values; gate and up). Each that is adapted has an
A and a B of its own, under its Hugging Face name, so that files and first values are those of every backend. Of a layer
whose outputs are cut, B is cut by its outputs and A is whole; of one whose inputs are cut, A is cut by its inputs and B
is whole. What crosses the ranks goes from A to B, and is as wide as the rank of the adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from torch import Tensor, nn

from refrl.config import LoraConfig
from refrl.policy.megatron.conversion import Link
from refrl.policy.megatron.parallel import Parallel


class Adapter(nn.Module):
    """`lora_A` and `lora_B` of one Hugging Face layer: this rank's parts, without values."""

    def __init__(
        self, inputs: int, outputs: int, dim: int, link: Link, parallel: Parallel, like: dict[str, Any]
    ) -> None:
        """Make both halves.

        Args:
            inputs: of this rank.
            outputs: of this rank.
            dim: rank of the adapter.
            link: of the weight that it adapts.
            parallel: the ranks that have the other parts.
            like: device and type.
        """
        super().__init__()
        self.lora_A = nn.Linear(inputs, dim, bias=False, **like)
        self.lora_B = nn.Linear(dim, outputs, bias=False, **like)
        self._cuts_outputs, self._group = link.split == 0, parallel.tensor
        self._sequences = parallel.config.sequence_parallel
        # The half that is whole sees this rank's tokens alone: Megatron-core sums gradients that are marked so.
        whole: Any = self.lora_A if self._cuts_outputs else self.lora_B
        whole.weight.sequence_parallel = self._sequences

    def forward(self, states: Tensor) -> Tensor:
        """Return B A states, [tokens, rows, own outputs] of [tokens, rows, own inputs]."""
        adapted: Tensor = self.lora_B(self._across(self.lora_A(states)))
        return adapted

    def _across(self, low: Tensor) -> Tensor:
        """Return what B takes of what A gives, [tokens, rows, rank of the adapter]."""
        if self._cuts_outputs:
            if self._sequences:
                return gather_from_sequence_parallel_region(low, group=self._group)
            return copy_to_tensor_model_parallel_region(low, group=self._group)
        if self._sequences:
            return reduce_scatter_to_sequence_parallel_region(low, group=self._group)
        return reduce_from_tensor_model_parallel_region(low, group=self._group)


class LayerAdapters(nn.Module):
    """The adapters of the Hugging Face layers in one parallel linear layer, as a hook of its forward pass."""

    def __init__(
        self, weight: Tensor, link: Link, numbers: Sequence[int], config: LoraConfig, parallel: Parallel
    ) -> None:
        """Make them.

        Args:
            weight: this rank's part of the frozen weight.
            link: the Hugging Face tensors in it.
            numbers: places, among the link's tensors, of the layers that are adapted.
            config: rank and scale.
            parallel: the ranks that have the other parts.
        """
        super().__init__()
        self._link, self._scaling = link, config.alpha / config.dim
        size = parallel.tensor.size() if link.split == 0 else 1
        self._outputs = [shape[0] // size for shape in link.shapes]
        self._names = [
            short_name(link.tensors[number]) if number in numbers else None
            for number in range(len(link.tensors))
        ]
        like = {"device": weight.device, "dtype": weight.dtype}
        for name, outputs in zip(self._names, self._outputs, strict=True):
            if name is not None:
                self.add_module(name, Adapter(weight.shape[1], outputs, config.dim, link, parallel, like))
        self.adapts = True

    def forward(self, states: Tensor) -> Tensor:
        """Return what the adapters add to the output of the layer, laid out as it is.

        Args:
            states: what the layer gets, [tokens, rows, own inputs].
        """
        added = [None if name is None else self.get_submodule(name)(states) for name in self._names]
        like = next(part for part in added if part is not None)
        parts = [
            like.new_zeros((*like.shape[:-1], outputs)) if part is None else part
            for part, outputs in zip(added, self._outputs, strict=True)
        ]
        # Outputs are rows of the weight: they lie in the output as in the weight.
        laid_out = self._link.merge([part.movedim(-1, 0) for part in parts]).movedim(0, -1)
        return laid_out * self._scaling

    def add_to(self, layer: nn.Module, inputs: tuple[Any, ...], output: tuple[Tensor, Any]) -> Any:
        """Add to the output of the layer: a hook of its forward pass."""
        del layer
        return (output[0] + self(inputs[0]), output[1]) if self.adapts else output


def short_name(tensor: str) -> str:
    """Return the last part of the name of a Hugging Face layer, of its weight's name."""
    return tensor.removesuffix(".weight").rpartition(".")[2]


def let_gradients_start(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Let the hidden states have a gradient though the embedding is frozen: a hook of its forward pass.

    A layer that is computed again in the backward pass by Megatron-core's own function has no gradient otherwise, and a
    pipeline stage nothing to send back.
    """
    del module, inputs
    return output.requires_grad_() if torch.is_grad_enabled() else output
