"""What a forward of a decoder-only model reads: its weights where they are, and the numbers between them.

Shapes: D width, Q query heads, K key/value heads, N = Q + K, H width of a head, I width of the MLP, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from refrl.generation.lean_norms import CentredNorm, NoNorm, Norm, NormLike, WideNorm
from refrl.generation.lean_rotary import Rotary
from refrl.generation.lean_traits import Traits, layer_type, layer_window, rotates, traits_of

JOIN_LIMIT_BYTES = 512 * 2**20
"""Models whose layers are larger than this are not joined: the copy would cost memory, and their steps are bound
by the size of the products, not by their number."""

Activation = Callable[[torch.Tensor], torch.Tensor]


def relu_squared(inputs: torch.Tensor) -> torch.Tensor:
    """Return the square of the positive part (arXiv 2109.08668)."""
    return functional.relu(inputs).square()


_gelu_tanh = partial(functional.gelu, approximate="tanh")
ACTIVATIONS: dict[type, Activation] = {
    nn.SiLU: functional.silu,
    type(ACT2FN["silu"]): functional.silu,
    type(ACT2FN["gelu"]): functional.gelu,
    type(ACT2FN["gelu_pytorch_tanh"]): _gelu_tanh,
    type(ACT2FN["gelu_new"]): _gelu_tanh,
    type(ACT2FN["relu2"]): relu_squared,
}
"""By the type of the module."""


@dataclass(frozen=True)
class Projection:
    """Linear maps of one input whose outputs are side by side: `inputs @ weight.T + bias`."""

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


@dataclass(frozen=True)
class FinishedProjection:
    """A projection whose result is normalised and scaled before it is added to the hidden states."""

    projection: Projection
    norm: NormLike
    scale: float

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that it reads."""
        yield from self.projection.tensors()
        yield from self.norm.tensors()

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Apply the projection, the norm and the scale."""
        return self.norm(self.projection(inputs)) * self.scale


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer."""

    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    is_parallel: bool
    """Whether the MLP reads what the attention reads."""
    attention_norm: NormLike
    qkv: Projection
    """Outputs: queries, keys, values."""
    qk_norm: NormLike | None
    """Norm of queries and keys, side by side; None without one."""
    rotary: int | None
    """Place in `LeanWeights.rotaries`; None: positions do not count."""
    window: int | None
    """Tokens that are attended to, the newest included; None for all."""
    attention_scale: float
    score_cap: float | None
    """Scores are `cap * tanh(score / cap)`; None: as they are."""
    attention_out: Projection | FinishedProjection
    mlp_norm: NormLike
    up: Projection
    """Outputs: gate, up; without a gate up alone."""
    is_gated: bool
    activation: Activation
    down: Projection | FinishedProjection

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that it reads."""
        parts = (
            self.attention_norm,
            self.qkv,
            self.qk_norm,
            self.attention_out,
            self.mlp_norm,
            self.up,
            self.down,
        )
        for part in parts:
            if part is not None:
                yield from part.tensors()


@dataclass(frozen=True)
class LeanWeights:
    """All that a forward reads, as it is in the module at this moment."""

    embedding_VD: torch.Tensor
    embedding_scale: float
    layers: tuple[LayerWeights, ...]
    rotaries: tuple[Rotary, ...]
    final_norm: NormLike
    head: Projection
    logits_scale: float
    logits_cap: float | None
    """Logits are `cap * tanh(logit / cap)`; None: as they are."""

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that a forward reads, in the same order for every model of one shape."""
        yield self.embedding_VD
        for layer in self.layers:
            yield from layer.tensors()
        yield from self.final_norm.tensors()
        yield from self.head.tensors()
        yield from (rotary.inv_freq for rotary in self.rotaries)

    def embedded(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the first hidden states of these ids."""
        hidden = functional.embedding(ids, self.embedding_VD)
        return hidden if self.embedding_scale == 1.0 else hidden * self.embedding_scale

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """Return the logits of hidden states after the last norm."""
        logits = self.head(normed)
        if self.logits_scale != 1.0:
            logits = logits * self.logits_scale
        if self.logits_cap is not None:
            logits = torch.tanh(logits / self.logits_cap) * self.logits_cap
        return logits


def read_weights(model: PreTrainedModel, *, join_limit_bytes: int | None = None) -> LeanWeights:
    """Read the live module's weights; neighbouring projections of a small model are joined by a copy.

    The copy is as old as the call, so it is made again for each generation.

    Args:
        model: one that `lean_support.supports_lean`.
        join_limit_bytes: largest size of the layers that are joined; None takes `JOIN_LIMIT_BYTES`.
    """
    traits = traits_of(model)
    assert traits is not None, "supports_lean is asked first"
    config: Any = model.config
    inner: Any = model.model
    num_bytes = sum(weight.numel() * weight.element_size() for weight in inner.layers.parameters())
    join = num_bytes <= (JOIN_LIMIT_BYTES if join_limit_bytes is None else join_limit_bytes)
    rotary_of = _read_rotaries(inner, traits)
    layers = tuple(
        _read_layer(layer, number, traits, rotary_of, join=join) for number, layer in enumerate(inner.layers)
    )
    return LeanWeights(
        embedding_VD=inner.embed_tokens.weight,
        embedding_scale=_embedding_scale(inner),
        layers=layers,
        rotaries=tuple(rotary_of.values()),
        final_norm=_norm(_first(inner, "norm", "final_layernorm"), traits),
        head=_project(model.lm_head, join=False),
        logits_scale=getattr(model, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0),
        logits_cap=getattr(config, "final_logit_softcapping", None),
    )


def _read_layer(
    layer: Any, number: int, traits: Traits, rotary_of: dict[str, Rotary], *, join: bool
) -> LayerWeights:
    attention, mlp, names = layer.self_attn, layer.mlp, traits.norms
    config = attention.config
    if hasattr(attention, "qkv_proj"):
        qkv = _project(attention.qkv_proj, join=False)
    else:
        qkv = _project(attention.q_proj, attention.k_proj, attention.v_proj, join=join)
    up, is_gated = _read_up(mlp, join=join)
    rotary = None
    if rotates(config, number, traits, attention):
        rotary = list(rotary_of).index(
            layer_type(config, number) if len(rotary_of) > 1 else next(iter(rotary_of))
        )

    def norm_at(name: str | None) -> NormLike:
        module = None if name is None else getattr(layer, name)
        return NoNorm() if module is None else _norm(module, traits)

    def finished(linear: nn.Linear, norm: str | None) -> Projection | FinishedProjection:
        projection, scale = _project(linear, join=False), getattr(layer, "residual_multiplier", 1.0)
        if norm is None and scale == 1.0:
            return projection
        return FinishedProjection(projection, norm_at(norm), scale)

    return LayerWeights(
        num_query_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        is_parallel=traits.is_parallel or getattr(layer, "use_parallel_residual", False),
        attention_norm=norm_at(names.attention),
        qkv=qkv,
        qk_norm=_qk_norm(attention, traits) if hasattr(attention, "q_norm") else None,
        rotary=rotary,
        window=layer_window(config, number, traits),
        attention_scale=attention.scaling,
        score_cap=config.attn_logit_softcapping if traits.caps_scores else None,
        attention_out=finished(_first(attention, "o_proj", "dense"), names.attention_out),
        mlp_norm=norm_at(names.mlp),
        up=up,
        is_gated=is_gated,
        activation=ACTIVATIONS[type(_first(mlp, "act_fn", "activation_fn", "act"))],
        down=finished(_first(mlp, "down_proj", "c_proj", "fc2"), names.mlp_out),
    )


def _read_rotaries(inner: Any, traits: Traits) -> dict[str, Rotary]:
    """Return the rotary embeddings by the type of the layers that they serve; one serves all as "full_attention"."""
    source = inner.rotary_emb
    head_dim = inner.layers[0].self_attn.head_dim
    prefixes = (
        {"full_attention": ""}
        if hasattr(source, "inv_freq")
        else {kind: f"{kind}_" for kind in source.layer_types}
    )
    return {
        kind: Rotary.of(
            getattr(source, f"{prefix}inv_freq"),
            getattr(source, f"{prefix}attention_scaling"),
            head_dim=head_dim,
            is_interleaved=traits.has_interleaved_rotary,
        )
        for kind, prefix in prefixes.items()
    }


def _embedding_scale(inner: Any) -> float:
    """Return the factor on the embeddings, rounded as the module rounds it."""
    embedding = inner.embed_tokens
    if hasattr(embedding, "scalar_embed_scale"):
        return float(torch.tensor(embedding.scalar_embed_scale).to(embedding.weight.dtype))
    return getattr(inner, "embedding_multiplier", 1.0)


def _norm(module: Any, traits: Traits, weight: torch.Tensor | None = None) -> NormLike:
    """Return the norm of a module; `weight` replaces that of the module."""
    weight = module.weight if weight is None else weight
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
    if traits.has_centred_norms:
        return CentredNorm(weight, getattr(module, "bias", None), eps, offset=traits.norm_offset)
    return Norm(weight, eps, offset=traits.norm_offset, rounds_last=traits.norm_rounds_last)


def _qk_norm(attention: Any, traits: Traits) -> NormLike:
    """Lay the weights of the query norm and of the key norm out over their heads, or keep both over all heads."""
    config = attention.config
    pairs = (
        (attention.q_norm, config.num_attention_heads),
        (attention.k_norm, config.num_key_value_heads),
    )
    if attention.q_norm.weight.shape[-1] != attention.head_dim:
        queries, keys = (_norm(norm, traits) for norm, _ in pairs)
        return WideNorm(queries, keys, config.num_attention_heads)
    weights = [norm.weight.expand(num_heads, -1) for norm, num_heads in pairs]
    return _norm(attention.q_norm, traits, torch.cat(weights))


def _read_up(mlp: Any, *, join: bool) -> tuple[Projection, bool]:
    """Return the maps into the MLP, and whether one of them is a gate."""
    if hasattr(mlp, "gate_up_proj"):
        return _project(mlp.gate_up_proj, join=False), True
    if hasattr(mlp, "gate_proj"):
        return _project(mlp.gate_proj, mlp.up_proj, join=join), True
    return _project(_first(mlp, "up_proj", "c_fc", "fc1"), join=False), False


def _first(module: Any, *names: str) -> Any:
    """Return the first of these attributes that the module has."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


def _project(*maps: nn.Linear, join: bool) -> Projection:
    weights = tuple(linear.weight for linear in maps)
    biases = tuple(linear.bias for linear in maps)
    if not join:
        return Projection(weights, biases)
    bias = None if biases[0] is None else torch.cat(biases)
    return Projection((torch.cat(weights),), (bias,))
