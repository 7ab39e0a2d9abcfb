"""Weights of linear layers in int8, for a generator of its own: symmetric, one scale an output channel.

An element is stored as round(w / s) with s = max |w| / 127 over its row, and is off by half a scale at most. The layers
compute with the products q s: what is sampled from is another distribution than the trainer's by that rounding, which
the log reports (`train/token_mult_prob_error`) and `loss_fn.importance_sampling` corrects.

Shapes: O outputs, I inputs of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from refrl.weight_sync.tensors import copy_tensors

LEVELS = 127
"""Largest magnitude of an element; -128 is not used, so that the range is symmetric."""


class Int8Linear(nn.Module):
    """A linear layer whose weight is held in int8."""

    weight: Tensor
    """Int8 [O, I]."""
    weight_scale: Tensor
    """Float32 [O]."""

    def __init__(self, linear: nn.Linear) -> None:
        """Take the weight of a layer, rounded, and its bias as it is."""
        super().__init__()
        weight_OI, scale_O = quantize(linear.weight)
        self.register_buffer("weight", weight_OI)
        self.register_buffer("weight_scale", scale_O)
        self.bias = linear.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the layer computes with the products of integers and scales."""
        weight_OI = self.weight * self.weight_scale[:, None]
        return functional.linear(inputs, weight_OI.to(inputs.dtype), self.bias)


@torch.no_grad()
def quantize(weight_OI: Tensor) -> tuple[Tensor, Tensor]:
    """Return (int8 weight, float32 scale_O) of a weight; a row of zeros has the scale 1."""
    weight_OI = weight_OI.float()
    largest_O = weight_OI.abs().amax(dim=1)
    scale_O = torch.where(largest_O > 0, largest_O / LEVELS, torch.ones_like(largest_O))
    return (weight_OI / scale_O[:, None]).round().clamp(-LEVELS, LEVELS).to(torch.int8), scale_O


def quantize_layers(model: PreTrainedModel) -> None:
    """Put an `Int8Linear` in the place of every linear layer but the output head."""
    head = model.get_output_embeddings()
    for path, module in list(model.named_modules()):
        if type(module) is nn.Linear and module is not head:
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, Int8Linear(module))


def num_quantized(model: nn.Module) -> int:
    """Return how many layers hold their weight in int8."""
    return sum(isinstance(module, Int8Linear) for module in model.modules())


def load_tensors(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Copy these tensors into the model's own, rounded where it holds int8.

    Raises:
        refrl.weight_sync.base.WeightSyncError: they are not the model's, by name or shape; nothing was copied.
    """
    layers = {f"{path}.weight" for path, one in model.named_modules() if isinstance(one, Int8Linear)}
    copy_tensors(model, dict(_as_held(weights, layers)))


def _as_held(weights: Mapping[str, Tensor], layers: set[str]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in weights.items():
        if name in layers:
            weight_OI, scale_O = quantize(tensor)
            yield name, weight_OI
            yield f"{name}_scale", scale_O
        else:
            yield name, tensor
