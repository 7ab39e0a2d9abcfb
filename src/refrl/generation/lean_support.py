"""Whether a module is one that the lean decoder computes exactly."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from torch import nn
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    SeedOssForCausalLM,
)
from transformers.activations import ACT2FN

SUPPORTED_MODELS = (
    LlamaForCausalLM,
    MistralForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    SeedOssForCausalLM,
)
"""Architectures of the lean decoder."""

SUPPORTED_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary embeddings whose frequencies do not depend on the length of the sequence."""

_PARTS = ("ForCausalLM", "Model", "DecoderLayer", "Attention", "MLP", "RMSNorm", "RotaryEmbedding")
_COMMON_PARTS = (nn.Linear, nn.Embedding, nn.ModuleList, nn.SiLU, type(ACT2FN["silu"]))


def supports_lean(model: nn.Module, modules: Sequence[nn.Module] | None = None) -> bool:
    """Return whether `LeanDecoder` computes what this module's forward would, up to rounding.

    Exact types are asked for: a subclass, an adapter, a sharded or quantised weight, a hook or a replaced forward
    may compute something else, and goes the generic way.

    Args:
        modules: the model and all its submodules, if the caller has them already.
    """
    if type(model) not in SUPPORTED_MODELS or not isinstance(model, PreTrainedModel):
        return False
    modules = tuple(model.modules()) if modules is None else modules
    known = _known_types(type(model))
    return (
        all(type(module) in known and not _is_hooked(module) for module in modules)
        and _has_plain_attention(model)
        and _is_uniform([weight for module in modules for weight in module._parameters.values()])
    )


def _known_types(model_type: type[PreTrainedModel]) -> frozenset[type]:
    """Return the classes of which an untouched model of this architecture is made."""
    modeling = sys.modules[model_type.__module__]
    family = model_type.__name__.removesuffix("ForCausalLM")
    return frozenset({*_COMMON_PARTS, *(getattr(modeling, family + part) for part in _PARTS)})


def _is_hooked(module: nn.Module) -> bool:
    """Whether calling the module does more than the forward of its class."""
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)


def _has_plain_attention(model: PreTrainedModel) -> bool:
    """Whether every layer attends to all earlier tokens, with rotary frequencies that stay as they are."""
    config = model.config
    return (
        set(getattr(config, "layer_types", None) or ()) <= {"full_attention"}
        and getattr(config, "sliding_window", None) is None
        and model.model.rotary_emb.rope_type in SUPPORTED_ROPE_TYPES
        and len(model.model.layers) == config.num_hidden_layers > 0
    )


def _is_uniform(weights: Iterable[nn.Parameter | None]) -> bool:
    """Whether all weights are ordinary tensors of one floating type on one device."""
    kinds = {(type(weight), weight.dtype, weight.device) for weight in weights if weight is not None}
    return len(kinds) == 1 and all(
        kind is nn.Parameter and dtype.is_floating_point for kind, dtype, _ in kinds
    )
