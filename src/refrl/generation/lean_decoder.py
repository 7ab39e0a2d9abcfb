"""A lean decoder for Llama, Mistral, Qwen2, Qwen3 and Seed-OSS: their mathematics without the framework around it.

A step of a small model is bound by the number of tensor operations, not by their size; this decoder issues little
more than half of those of the module's own forward, and a step of a tiny model takes about a third of the time.

Shapes: P prompts, B rows, T tokens read at once, S slots of the cache, D width, Q query heads, K key/value heads,
N = Q + K, X = N + K, G = Q / K queries to a key, H width of a head, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from refrl.generation.decoder import PaddedPrompts

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


class LayerSlots(NamedTuple):
    """Views into the cache of one layer, for T new tokens."""

    new_keys_BKTH: torch.Tensor
    """To be written."""
    new_values_BKTH: torch.Tensor
    """To be written."""
    keys_BKSH: torch.Tensor
    """All slots up to and with the new ones."""
    values_BKSH: torch.Tensor
    """All slots up to and with the new ones."""


class KVCache:
    """Keys and values of all layers; every row fills the same slots, so a step writes one slot of each row."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_rows: int,
        num_heads: int,
        num_slots: int,
        head_dim: int,
        like: torch.Tensor,
    ) -> None:
        """Allocate on the device and in the type of `like`; `num_slots` is the most that can be appended."""
        self._store_L2BKSH = like.new_empty(num_layers, 2, num_rows, num_heads, num_slots, head_dim)
        self.num_filled = 0
        """Slots that hold keys and values."""

    @property
    def filled_L2BKSH(self) -> torch.Tensor:
        """Keys and values of all layers, in the slots that are filled."""
        return self._store_L2BKSH[..., : self.num_filled, :]

    def extend(self, num_tokens: int) -> list[LayerSlots]:
        """Count the next T slots as filled; return the views of each layer, which is to write them before it reads."""
        start, end = self.num_filled, self.num_filled + num_tokens
        self.num_filled = end
        filled = self._store_L2BKSH[..., :end, :].flatten(0, 1).unbind()
        new = self._store_L2BKSH[..., start:end, :].flatten(0, 1).unbind()
        return [
            LayerSlots(new[number], new[number + 1], filled[number], filled[number + 1])
            for number in range(0, len(filled), 2)
        ]

    def expand(self, rows: torch.Tensor) -> None:
        """Make row b a copy of the present row `rows[b]`: a shared prompt is read once, then repeated."""
        old = self._store_L2BKSH
        num_layers, _, _, num_heads, num_slots, head_dim = old.shape
        self._store_L2BKSH = old.new_empty(num_layers, 2, len(rows), num_heads, num_slots, head_dim)
        self._store_L2BKSH[..., : self.num_filled, :] = old[:, :, rows, :, : self.num_filled]

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows, in this order; only a row that changes its place is copied."""
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero().squeeze(-1)
        filled = self._store_L2BKSH[:, :, :, :, : self.num_filled]
        filled[:, :, moved] = filled[:, :, rows[moved]]
        self._store_L2BKSH = self._store_L2BKSH[:, :, : len(rows)]


class LeanDecoder:
    """Decodes with the live module's weights as they are when the decoder is made (see `Decoder`)."""

    def __init__(self, model: PreTrainedModel, max_new_tokens: int) -> None:
        """Read the weights of a model that `supports_lean`; the cache is sized for `max_new_tokens`."""
        self._weights = read_weights(model)
        self._max_new_tokens = max_new_tokens
        self._allowed_B11S: torch.Tensor | None = None

    def prefill(self, prompts: PaddedPrompts) -> torch.Tensor:
        """Read the prompts into the cache; return logits_PV."""
        weights = self._weights
        num_prompts, width = prompts.ids_PS.shape
        num_slots = width + self._max_new_tokens
        self._rotary_SH = rotary_tables(
            weights.inv_freq, weights.attention_scaling, num_slots, weights.embedding_VD.dtype
        )
        self._cache = KVCache(
            num_layers=len(weights.layers),
            num_rows=num_prompts,
            num_heads=weights.layers[0].num_kv_heads,
            num_slots=num_slots,
            head_dim=weights.layers[0].head_dim,
            like=weights.embedding_VD,
        )
        self._lens_B = prompts.lens_P
        allowed_P1SS = None
        if prompts.is_ragged:
            mask_PS = prompts.mask_PS()
            self._allowed_B11S = functional.pad(mask_PS, (0, self._max_new_tokens), value=True)[:, None, None]
            # A padded slot sees itself: an empty softmax would be NaN.
            itself_SS = torch.eye(width, dtype=torch.bool, device=mask_PS.device)
            allowed_P1SS = torch.ones_like(itself_SS).tril() & mask_PS[:, None, None] | itself_SS
        return self._logits(prompts.ids_PS, prompts.positions_PS(), allowed_P1SS)

    @property
    def cached_L2PKSH(self) -> torch.Tensor:
        """Keys and values of the slots that are filled."""
        return self._cache.filled_L2BKSH

    def expand(self, prompt_of_row_B: torch.Tensor) -> None:
        """Make one row of the cache for each sequence."""
        self._cache.expand(prompt_of_row_B)
        self._select(prompt_of_row_B)

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows, in this order."""
        self._cache.keep(rows)
        self._select(rows)

    def step(self, ids_B: torch.Tensor) -> torch.Tensor:
        """Append one token to every row; return logits_BV."""
        if self._allowed_B11S is None:
            return self._logits(ids_B[:, None], self._cache.num_filled, None)
        positions_B1 = self._lens_B[:, None]
        self._lens_B = self._lens_B + 1
        return self._logits(
            ids_B[:, None], positions_B1, self._allowed_B11S[..., : self._cache.num_filled + 1]
        )

    def _select(self, rows: torch.Tensor) -> None:
        self._lens_B = self._lens_B[rows]
        if self._allowed_B11S is not None:
            self._allowed_B11S = self._allowed_B11S[rows]

    def _logits(
        self, ids_BT: torch.Tensor, positions: torch.Tensor | int, allowed: torch.Tensor | None
    ) -> torch.Tensor:
        """Read T tokens at their positions (one number when all rows share it); return the last token's logits."""
        weights = self._weights
        num_rows, num_tokens = ids_BT.shape
        cos, sin = (table[positions].unsqueeze(-2) for table in self._rotary_SH)
        # Rows and tokens share one dimension: a product of two matrices costs less to start than a batched one.
        hidden_MD = functional.embedding(ids_BT.reshape(-1), weights.embedding_VD)
        for layer, slots in zip(weights.layers, self._cache.extend(num_tokens), strict=True):
            heads_MC = layer.qkv(layer.attention_norm(hidden_MD))
            mixed_BTQH = _attend(
                layer, slots, heads_MC.view(num_rows, num_tokens, -1, layer.head_dim), cos, sin, allowed
            )
            hidden_MD = hidden_MD + layer.attention_out(mixed_BTQH.reshape(num_rows * num_tokens, -1))
            gate, up = layer.gate_up(layer.mlp_norm(hidden_MD)).chunk(2, dim=-1)
            hidden_MD = hidden_MD + layer.down(functional.silu(gate) * up)
        return weights.head(weights.final_norm(hidden_MD[num_tokens - 1 :: num_tokens]))


def _attend(
    layer: LayerWeights,
    slots: LayerSlots,
    heads_BTXH: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    allowed: torch.Tensor | None,
) -> torch.Tensor:
    """Write the new keys and values, and return what the queries gather: mixed_BTQH.

    Args:
        heads_BTXH: queries, keys and values of the new tokens, side by side.
        cos: of the rotary embedding at the new tokens' positions.
        sin: likewise, its first half negated.
        allowed: True where a slot may be seen; None for all earlier ones.
    """
    num_rows, num_tokens, _, head_dim = heads_BTXH.shape
    num_queries, num_keys = layer.num_query_heads, layer.num_kv_heads
    qk_BTNH, values_BTKH = heads_BTXH.split_with_sizes((num_queries + num_keys, num_keys), dim=2)
    if layer.qk_norm is not None:
        qk_BTNH = layer.qk_norm(qk_BTNH)
    first, second = qk_BTNH.chunk(2, dim=-1)
    qk_BTNH = torch.addcmul(qk_BTNH * cos, torch.cat([second, first], dim=-1), sin)
    queries_BTQH, keys_BTKH = qk_BTNH.split_with_sizes((num_queries, num_keys), dim=2)
    slots.new_keys_BKTH.copy_(keys_BTKH.transpose(1, 2))
    slots.new_values_BKTH.copy_(values_BTKH.transpose(1, 2))
    if num_tokens == 1:
        # The G queries that share a key stand in the place of tokens: no key is repeated.
        queries_BKGH = queries_BTQH.view(num_rows, num_keys, -1, head_dim)
        return functional.scaled_dot_product_attention(
            queries_BKGH, slots.keys_BKSH, slots.values_BKSH, attn_mask=allowed, scale=layer.attention_scale
        )
    return functional.scaled_dot_product_attention(
        queries_BTQH.transpose(1, 2),
        slots.keys_BKSH,
        slots.values_BKSH,
        attn_mask=allowed,
        is_causal=allowed is None,
        scale=layer.attention_scale,
        enable_gqa=True,
    ).transpose(1, 2)


def rotary_tables(
    inv_freq: torch.Tensor, scaling: float, num_positions: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos_SH and sin_SH of the rotary embedding (arXiv 2104.09864); the first half of sin is negated.

    With `x` and its halves swapped, `x * cos + swapped * sin` is the rotation.
    """
    positions_S = torch.arange(num_positions, device=inv_freq.device, dtype=torch.float32)
    angles = positions_S[:, None] * inv_freq.float()
    cos, sin = angles.cos() * scaling, angles.sin() * scaling
    return torch.cat([cos, cos], dim=-1).to(dtype), torch.cat([-sin, sin], dim=-1).to(dtype)
