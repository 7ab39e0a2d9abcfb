"""Whether a module is one that the lean decoder computes exactly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from refrl.generation.lean_traits import LAYER_TYPES, traits_of
from refrl.generation.lean_weights import ACTIVATIONS

SUPPORTED_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose frequencies do not depend on the length of the sequence."""

_COMMON_PARTS = frozenset({nn.Linear, nn.Embedding, nn.ModuleList, nn.LayerNorm, nn.Dropout, *ACTIVATIONS})


def supports_lean(model: nn.Module, modules: Sequence[nn.Module] | None = None) -> bool:
    """Return whether `LeanDecoder` computes what this module's forward would, up to rounding.

    Exact types are needed: a subclass, an adapter, a sharded or quantised weight, a hook or a replaced forward
    may compute something else, and goes the generic way.

    Args:
        model: any module.
        modules: the model and all its submodules, if the caller has them already.
    """
    if traits_of(model) is None or not isinstance(model, PreTrainedModel):
        return False
    modules = tuple(model.modules()) if modules is None else modules
    source = type(model).__module__
    return (
        all(
            (type(module) in _COMMON_PARTS or type(module).__module__ == source) and not _is_hooked(module)
            for module in modules
        )
        and _has_fixed_layers(model)
        and _is_uniform([weight for module in modules for weight in module._parameters.values()])
    )


def _is_hooked(module: nn.Module) -> bool:
    """Whether calling the module does more than the forward of its class."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


def _has_fixed_layers(model: PreTrainedModel) -> bool:
    """Whether all layers attend to all earlier tokens or to a window, with rotary frequencies that stay as they are."""
    config, inner = model.config, model.model
    return (
        set(getattr(config, "layer_types", None) or ()) <= LAYER_TYPES
        and _rope_types(inner.rotary_emb) <= SUPPORTED_ROPE_TYPES
        and len(inner.layers) == config.num_hidden_layers > 0
    )


def _rope_types(rotary: Any) -> set[str]:
    """Return the kinds of rotary embedding: one for all layers, or one for each type of layer."""
    kinds = rotary.rope_type
    return set(kinds.values()) if isinstance(kinds, dict) else {kinds}


def _is_uniform(weights: Iterable[nn.Parameter | None]) -> bool:
    """Whether all weights are ordinary tensors of one floating type on one device."""
    kinds = {(type(weight), weight.dtype, weight.device) for weight in weights if weight is not None}
    return len(kinds) == 1 and all(
        kind is nn.Parameter and dtype.is_floating_point for kind, dtype, _ in kinds
    )
