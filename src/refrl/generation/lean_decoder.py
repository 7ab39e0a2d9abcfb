"""A lean decoder for Llama, Qwen2 and Qwen3: the mathematics of their forward without the framework around it.

A step of a small model is bound by the number of tensor operations, not by their size; this decoder issues
about a third of those of the module's own forward.

Shapes: P prompts, B rows, T tokens read at once, S slots of the cache, D width, N heads of queries and keys,
Q query heads, K key/value heads, G = Q / K queries to a key, H width of a head, V vocabulary.
"""

from __future__ import annotations

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from refrl.generation.decoder import PaddedPrompts
from refrl.generation.kv_cache import KVCache
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
        self._rotary_SH = _rotary_tables(
            weights.inv_freq, weights.attention_scaling, num_slots, weights.embedding_VD.dtype
        )
        self._cache = KVCache(
            num_layers=len(weights.layers),
            num_rows=num_prompts,
            num_heads=weights.num_kv_heads,
            num_slots=num_slots,
            head_dim=weights.head_dim,
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
        cos, sin = (table[positions].unsqueeze(-2) for table in self._rotary_SH)
        hidden_BTD = functional.embedding(ids_BT, self._weights.embedding_VD)
        for number, layer in enumerate(self._weights.layers):
            hidden_BTD = hidden_BTD + self._attend(number, layer, hidden_BTD, cos, sin, allowed)
            gate, up = layer.gate_up(layer.mlp_norm(hidden_BTD)).chunk(2, dim=-1)
            hidden_BTD = hidden_BTD + layer.down(functional.silu(gate) * up)
        self._cache.advance(ids_BT.shape[1])
        return self._weights.head(self._weights.final_norm(hidden_BTD[:, -1]))

    def _attend(
        self,
        number: int,
        layer: LayerWeights,
        hidden_BTD: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        allowed: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return what the attention of one layer adds; `allowed` is True where a slot may be seen."""
        num_queries, num_keys = self._weights.num_query_heads, self._weights.num_kv_heads
        num_rows, num_tokens, _ = hidden_BTD.shape
        heads = layer.qkv(layer.attention_norm(hidden_BTD)).view(
            num_rows, num_tokens, -1, self._weights.head_dim
        )
        qk_BTNH, values_BTKH = heads[:, :, :-num_keys], heads[:, :, -num_keys:]
        if layer.qk_norm is not None:
            qk_BTNH = layer.qk_norm(qk_BTNH)
        qk_BTNH = qk_BTNH * cos + _swap_halves(qk_BTNH) * sin
        keys_BKSH, values_BKSH = self._cache.append(number, qk_BTNH[:, :, num_queries:], values_BTKH)
        queries_BTQH = qk_BTNH[:, :, :num_queries]
        if num_tokens == 1:
            # The queries that share a key stand in the place of tokens.
            queries_BKGH = queries_BTQH.reshape(num_rows, num_keys, -1, self._weights.head_dim)
            mixed = _attention_of_step(queries_BKGH, keys_BKSH, values_BKSH, allowed, layer.attention_scale)
        else:
            mixed = functional.scaled_dot_product_attention(
                queries_BTQH.transpose(1, 2),
                keys_BKSH,
                values_BKSH,
                attn_mask=allowed,
                is_causal=allowed is None,
                scale=layer.attention_scale,
                enable_gqa=num_queries != num_keys,
            ).transpose(1, 2)
        return layer.attention_out(mixed.reshape(num_rows, num_tokens, -1))


def _attention_of_step(
    queries_BKGH: torch.Tensor,
    keys_BKSH: torch.Tensor,
    values_BKSH: torch.Tensor,
    allowed_B11S: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attend from one new token of each row to every slot."""
    return functional.scaled_dot_product_attention(
        queries_BKGH, keys_BKSH, values_BKSH, attn_mask=allowed_B11S, scale=scale
    )


def _rotary_tables(
    inv_freq: torch.Tensor, scaling: float, num_positions: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos_SH and sin_SH of the rotary embedding (arXiv 2104.09864); the first half of sin is negated.

    With `x` and its halves swapped, `x * cos + swapped * sin` is the rotation.
    """
    positions_S = torch.arange(num_positions, device=inv_freq.device, dtype=torch.float32)
    angles = positions_S[:, None] * inv_freq.float()
    cos, sin = angles.cos() * scaling, angles.sin() * scaling
    return torch.cat([cos, cos], dim=-1).to(dtype), torch.cat([-sin, sin], dim=-1).to(dtype)


def _swap_halves(heads: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([second, first], dim=-1)
