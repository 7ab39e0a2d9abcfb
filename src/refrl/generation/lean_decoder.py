"""A lean decoder for Llama, Qwen2 and Qwen3: the mathematics of their forward without the framework around it.

A step of a small model is bound by the number of tensor operations, not by their size; this decoder issues little
more than half of those of the module's own forward, and a step of a tiny model takes about a third of the time.

Shapes: P prompts, B rows, T tokens read at once, S slots of the cache, D width, Q query heads, K key/value heads,
N = Q + K, X = N + K, G = Q / K queries to a key, H width of a head, V vocabulary.
"""

from __future__ import annotations

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from refrl.generation.decoder import PaddedPrompts
from refrl.generation.kv_cache import KVCache, LayerSlots
from refrl.generation.lean_weights import LayerWeights, read_weights


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
