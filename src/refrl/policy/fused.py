"""Passes through a model with fused kernels: torch's own norm, and gates and rotary embeddings of `liger_kernel`
(https://github.com/linkedin/Liger-Kernel).

In a model of a few hundred million parameters most of a pass is elementwise kernels: norms in float32, rotary
embeddings, gates. Fused, they read and write their tensors once, and keep less for the backward pass. The forward of a
module is replaced only while a pass runs, as in `refrl.policy.activations`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

from torch import Tensor
from torch.nn import functional
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from refrl.algorithms.batching import Batch
from refrl.policy.base import Forward

FUSED_MODELS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
"""Architectures that the kernels serve."""


def why_not_fused(model: PreTrainedModel) -> str | None:
    """Return why the kernels cannot serve a model; None where they can."""
    if model.device.type != "cuda":
        return f"the model is on {model.device.type}"
    if type(model) not in FUSED_MODELS:
        return f"{type(model).__name__} is not served"
    if model.config.hidden_act != "silu":
        return f"the activation {model.config.hidden_act} is not served"
    if find_spec("liger_kernel") is None:
        return "the package liger_kernel is not installed"
    return None


@dataclass(frozen=True)
class FusedForward:
    """A `Forward` of the models of one architecture: each norm, gate and rotary embedding is one kernel."""

    forward: Forward

    def __call__(self, model: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
        """Score, with or without gradient."""
        modeling: Any = sys.modules[type(model).__module__]
        family = type(model).__name__.removesuffix("ForCausalLM")
        kinds: dict[type, Callable[..., Tensor]] = {
            getattr(modeling, family + "RMSNorm"): _norm,
            getattr(modeling, family + "MLP"): _gated,
        }
        served = [module for module in model.modules() if type(module) in kinds]
        plain = modeling.apply_rotary_pos_emb
        modeling.apply_rotary_pos_emb = _rotate
        for module in served:
            module.forward = partial(kinds[type(module)], module)
        try:
            return self.forward(model, batch)
        finally:
            modeling.apply_rotary_pos_emb = plain
            for module in served:
                del module.forward


def _norm(module: Any, states: Tensor) -> Tensor:
    return functional.rms_norm(states, module.weight.shape, module.weight, module.variance_epsilon)


def _gated(module: Any, states: Tensor) -> Tensor:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    return module.down_proj(LigerSiLUMulFunction.apply(module.gate_proj(states), module.up_proj(states)))


def _rotate(
    queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    from liger_kernel.ops.rope import LigerRopeFunction

    return LigerRopeFunction.apply(queries, keys, cos, sin, None, unsqueeze_dim)
