"""The weights of a Llama, Qwen2 or Qwen3 model, read from the live module and joined into fewer, larger products.

Shapes: V vocabulary, D width of the model, N heads of queries and keys together, H width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

JOIN_LIMIT_BYTES = 512 * 2**20
"""Models whose layers are larger than this are not joined: the copy would cost memory, and their steps are bound
by the size of the products, not by their number."""


@dataclass(frozen=True)
class Projection:
    """Linear maps of one input whose outputs stand side by side: `inputs @ weight.T + bias`."""

    weights: tuple[torch.Tensor, ...]
    biases: tuple[torch.Tensor | None, ...]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that it reads."""
        yield from self.weights
        yield from (bias for bias in self.biases if bias is not None)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Apply the maps; the last dimension of the result holds all their outputs."""
        if len(self.weights) == 1:
            return functional.linear(inputs, self.weights[0], self.biases[0])
        pairs = zip(self.weights, self.biases, strict=True)
        return torch.cat([functional.linear(inputs, weight, bias) for weight, bias in pairs], dim=-1)


class Norm:
    """Root-mean-square norm over the last dimension (arXiv 1910.07467), as the Hugging Face models round it."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        """Prepare the norm; the weight broadcasts against the input."""
        width = weight.shape[-1]
        self.weight = weight
        self.eps = eps
        # x / sqrt(mean(x^2) + eps) = x * sqrt(width) / hypot(|x|, sqrt(width * eps)): fewer passes over x.
        self._root_weight = weight * math.sqrt(width)
        self._floor = torch.tensor(math.sqrt(width * eps), device=weight.device)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that it reads."""
        yield from (self.weight, self._root_weight, self._floor)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise in float32, round to the type of the input, then scale."""
        if inputs.dtype == torch.float32:
            length = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
            return inputs / torch.hypot(length, self._floor) * self._root_weight
        normalised = functional.rms_norm(inputs.float(), inputs.shape[-1:], eps=self.eps)
        return normalised.to(inputs.dtype) * self.weight


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer."""

    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    attention_norm: Norm
    qkv: Projection
    """Outputs: queries, keys, values."""
    qk_norm: Norm | None
    """Norm of each head of queries and keys, weight_NH; None without one."""
    attention_scale: float
    attention_out: Projection
    mlp_norm: Norm
    gate_up: Projection
    """Outputs: gate, up."""
    down: Projection

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that it reads."""
        parts = (
            self.attention_norm,
            self.qkv,
            self.qk_norm,
            self.attention_out,
            self.mlp_norm,
            self.gate_up,
            self.down,
        )
        for part in parts:
            if part is not None:
                yield from part.tensors()


@dataclass(frozen=True)
class LeanWeights:
    """All that a forward reads, as it is in the module at this moment."""

    embedding_VD: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Norm
    head: Projection
    inv_freq: torch.Tensor
    """Frequencies of the rotary embedding, one per pair of dimensions of a head."""
    attention_scaling: float
    """Factor on the rotary embedding (above 1 with yarn)."""

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that a forward reads, in the same order for every model of one shape."""
        yield self.embedding_VD
        for layer in self.layers:
            yield from layer.tensors()
        yield from self.final_norm.tensors()
        yield from self.head.tensors()
        yield self.inv_freq


def read_weights(model: PreTrainedModel, *, join_limit_bytes: int = JOIN_LIMIT_BYTES) -> LeanWeights:
    """Read the live module's weights; neighbouring projections of a small model are joined by a copy.

    The copy is as old as the call, so it is made again for each generation.
    """
    inner: Any = model.model
    num_bytes = sum(weight.numel() * weight.element_size() for weight in inner.layers.parameters())
    join = num_bytes <= join_limit_bytes
    return LeanWeights(
        embedding_VD=inner.embed_tokens.weight,
        layers=tuple(_read_layer(layer, join=join) for layer in inner.layers),
        final_norm=_norm(inner.norm),
        head=_project(model.lm_head, join=False),
        inv_freq=inner.rotary_emb.inv_freq,
        attention_scaling=inner.rotary_emb.attention_scaling,
    )


def _read_layer(layer: Any, *, join: bool) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    return LayerWeights(
        num_query_heads=attention.q_proj.out_features // attention.head_dim,
        num_kv_heads=attention.k_proj.out_features // attention.head_dim,
        head_dim=attention.head_dim,
        attention_norm=_norm(layer.input_layernorm),
        qkv=_project(attention.q_proj, attention.k_proj, attention.v_proj, join=join),
        qk_norm=_qk_norm(attention) if hasattr(attention, "q_norm") else None,
        attention_scale=attention.scaling,
        attention_out=_project(attention.o_proj, join=False),
        mlp_norm=_norm(layer.post_attention_layernorm),
        gate_up=_project(mlp.gate_proj, mlp.up_proj, join=join),
        down=_project(mlp.down_proj, join=False),
    )


def _norm(module: Any) -> Norm:
    return Norm(module.weight, module.variance_epsilon)


def _qk_norm(attention: Any) -> Norm:
    """Lay the weights of the query norm and of the key norm out over their heads."""
    pairs = ((attention.q_norm, attention.q_proj), (attention.k_norm, attention.k_proj))
    weights = [norm.weight.expand(proj.out_features // attention.head_dim, -1) for norm, proj in pairs]
    return Norm(torch.cat(weights), attention.q_norm.variance_epsilon)


def _project(*maps: nn.Linear, join: bool) -> Projection:
    weights = tuple(linear.weight for linear in maps)
    biases = tuple(linear.bias for linear in maps)
    if not join:
        return Projection(weights, biases)
    bias = None if biases[0] is None else torch.cat(biases)
    return Projection((torch.cat(weights),), (bias,))
