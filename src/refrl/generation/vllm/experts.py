"""Experts of a vLLM model: packed again after new weights, and unpacked to be compared.

E experts, I their inner width, D the width of the model.

vLLM's CPU build (0.32.0) keeps the matrices of all experts of a layer in two tensors. It puts them into the order of
its kernel when a model is loaded, and not again when its weights are reloaded: the kernel then reads the new values in
the wrong places, without an error (docs/extend/vllm.md). The order is a permutation of the elements of each tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

LAYER = "routed_experts"
"""Of vLLM, below the layer that Hugging Face names `experts`."""
_STORED = {"gate_up_proj": "w13_weight", "down_proj": "w2_weight"}
"""By the leaf of a Hugging Face name."""
_BYTES = {2: torch.int16, 4: torch.int32}
"""By size of an element: integers of as many bytes."""
_DIGIT = 2**14
"""Places are written in digits of this base: as bits of a 16-bit number they are zero or an ordinary positive one."""


def pack_experts(model: nn.Module) -> None:
    """Have the kernels compute with the experts that were loaded last."""
    for layer in _packing(model):
        layer.quant_method.moe_kernel.fused_experts.process_weights_after_loading(layer)


def served_experts(layer: Any, leaf: str, shape: tuple[int, ...]) -> Tensor | None:
    """Return the experts that a layer computes with, as Hugging Face keeps them.

    Args:
        layer: what vLLM has for `experts`.
        leaf: `gate_up_proj` ([E, 2 I, D]) or `down_proj` ([E, D, I]).
        shape: of that tensor.

    Returns:
        The tensor; None where the layer, or its kernel, is of another kind.
    """
    experts = getattr(layer, LAYER, None)
    if experts is None or leaf not in _STORED or not _packs(experts):
        return None
    kernel = experts.quant_method.moe_kernel.fused_experts
    packed: Tensor = getattr(experts, _STORED[leaf])
    if packed.numel() != torch.Size(shape).numel():
        return None  # widened to a multiple of the kernel's block
    return unpacked(packed, lambda plain: _packed_by(kernel, plain)).view(shape)


def unpacked(packed: Tensor, pack: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a tensor as it was before its elements were exchanged.

    Args:
        packed: N elements of 2 or 4 bytes, in any shape.
        pack: exchanges the elements of a tensor of that shape and type, by their places alone.

    Returns:
        The same elements: `pack` makes `packed` of it.
    """
    places_N = torch.arange(packed.numel())
    came_from_N = torch.zeros_like(places_N)
    whole = _BYTES[packed.element_size()]
    scale = 1
    while scale < packed.numel():
        digits_N = (places_N // scale % _DIGIT).to(whole).view(packed.dtype)
        came_from_N += pack(digits_N.view(packed.shape)).reshape(-1).view(whole).long() * scale
        scale *= _DIGIT
    found_N = torch.empty_like(packed).view(-1)
    found_N[came_from_N] = packed.reshape(-1)
    return found_N.view(packed.shape)


def _packing(model: nn.Module) -> Iterator[Any]:
    """Yield the layers of experts whose kernel has an order of its own."""
    for name, layer in model.named_modules():
        if name.rpartition(".")[2] == LAYER and _packs(layer):
            yield layer


def _packs(layer: Any) -> bool:
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    kernel = getattr(getattr(layer.quant_method, "moe_kernel", None), "fused_experts", None)
    return isinstance(kernel, CPUUnquantizedExperts) and not kernel._use_zentorch


def _packed_by(kernel: Any, plain: Tensor) -> Tensor:
    from vllm._custom_ops import cpu_prepack_moe_weight

    packed: Tensor = cpu_prepack_moe_weight(plain, kernel.isa)
    return packed
