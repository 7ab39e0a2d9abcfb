"""A lean decoder: the mathematics of decoder-only models without the framework around it.

A step of a small model is bound by the number of tensor operations, not by their size; this decoder issues little
more than half of those of the module's own forward, and a step of a tiny model takes about a third of the time.
`lean_traits.ARCHITECTURES` lists what it serves.

Shapes: P prompts, B rows, T tokens read at once, S slots of the cache, D width, Q query heads, K key/value heads,
N = Q + K, X = N + K, G = Q / K queries to a key, H width of a head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from refrl.generation.decoder import PaddedPrompts
from refrl.generation.lean_rotary import Rotary
from refrl.generation.lean_weights import LayerWeights, read_weights


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
        self._windows = {layer.window for layer in self._weights.layers if layer.window is not None}
        self._max_new_tokens = max_new_tokens
        self._allowed_B11S: torch.Tensor | None = None

    def prefill(self, prompts: PaddedPrompts) -> torch.Tensor:
        """Read the prompts into the cache; return logits_PV."""
        weights = self._weights
        num_prompts, width = prompts.ids_PS.shape
        num_slots = width + self._max_new_tokens
        self._tables = [rotary.tables(num_slots, weights.embedding_VD.dtype) for rotary in weights.rotaries]
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
        allowed: dict[int | None, torch.Tensor | None] = {None: allowed_P1SS}
        for window in self._windows:
            near_SS = torch.ones(width, width, dtype=torch.bool, device=prompts.ids_PS.device).tril()
            near_SS = near_SS.triu(1 - window)
            allowed[window] = near_SS if allowed_P1SS is None else allowed_P1SS & near_SS
        return self._logits(prompts.ids_PS, prompts.positions_PS(), allowed)

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
        allowed: dict[int | None, torch.Tensor | None] = dict.fromkeys((None, *self._windows))
        if self._allowed_B11S is None:
            return self._logits(ids_B[:, None], self._cache.num_filled, allowed)
        positions_B1 = self._lens_B[:, None]
        self._lens_B = self._lens_B + 1
        allowed_B11S = self._allowed_B11S[..., : self._cache.num_filled + 1]
        allowed[None] = allowed_B11S
        for window in self._windows:
            allowed[window] = allowed_B11S[..., -window:]
        return self._logits(ids_B[:, None], positions_B1, allowed)

    def _select(self, rows: torch.Tensor) -> None:
        self._lens_B = self._lens_B[rows]
        if self._allowed_B11S is not None:
            self._allowed_B11S = self._allowed_B11S[rows]

    def _logits(
        self,
        ids_BT: torch.Tensor,
        positions: torch.Tensor | int,
        allowed: Mapping[int | None, torch.Tensor | None],
    ) -> torch.Tensor:
        """Return the last token's logits after reading T tokens.

        Args:
            ids_BT: the tokens.
            positions: of the tokens; one number if all rows share it.
            allowed: by the window of a layer, true where a slot may be seen; None for all earlier ones.
        """
        weights = self._weights
        num_rows, num_tokens = ids_BT.shape
        tables = [
            (cos_SH[positions].unsqueeze(-2), sin_SH[positions].unsqueeze(-2))
            for cos_SH, sin_SH in self._tables
        ]
        # Rows and tokens share one dimension: a product of two matrices costs less to start than a batched one.
        hidden_MD = weights.embedded(ids_BT.reshape(-1))
        for layer, slots in zip(weights.layers, self._cache.extend(num_tokens), strict=True):
            normed_MD = layer.attention_norm(hidden_MD)
            heads_BTXH = layer.qkv(normed_MD).view(num_rows, num_tokens, -1, layer.head_dim)
            turns = None if layer.rotary is None else (weights.rotaries[layer.rotary], *tables[layer.rotary])
            mixed_BTQH = _attend(layer, slots, heads_BTXH, turns, allowed[layer.window])
            attended_MD = layer.attention_out(mixed_BTQH.reshape(num_rows * num_tokens, -1))
            hidden_MD = hidden_MD + attended_MD
            up_MI = layer.up(normed_MD if layer.is_parallel else layer.mlp_norm(hidden_MD))
            if layer.is_gated:
                gate, up = up_MI.chunk(2, dim=-1)
                active_MI = layer.activation(gate) * up
            else:
                active_MI = layer.activation(up_MI)
            hidden_MD = hidden_MD + layer.down(active_MI)
        return weights.logits(weights.final_norm(hidden_MD[num_tokens - 1 :: num_tokens]))


def _attend(
    layer: LayerWeights,
    slots: LayerSlots,
    heads_BTXH: torch.Tensor,
    turns: tuple[Rotary, torch.Tensor, torch.Tensor] | None,
    allowed: torch.Tensor | None,
) -> torch.Tensor:
    """Write the new keys and values, and return what the queries gather: mixed_BTQH.

    Args:
        layer: its weights.
        slots: its part of the cache.
        heads_BTXH: queries, keys and values of the new tokens, side by side.
        turns: the rotary embedding with cos and sin at the new tokens' positions; None without one.
        allowed: true where a slot may be seen; None for all earlier ones.
    """
    num_rows, num_tokens, _, head_dim = heads_BTXH.shape
    num_queries, num_keys = layer.num_query_heads, layer.num_kv_heads
    qk_BTNH, values_BTKH = heads_BTXH.split_with_sizes((num_queries + num_keys, num_keys), dim=2)
    if layer.qk_norm is not None:
        qk_BTNH = layer.qk_norm(qk_BTNH)
    if turns is not None:
        rotary, cos, sin = turns
        qk_BTNH = rotary.turn(qk_BTNH, cos, sin)
    queries_BTQH, keys_BTKH = qk_BTNH.split_with_sizes((num_queries, num_keys), dim=2)
    slots.new_keys_BKTH.copy_(keys_BTKH.transpose(1, 2))
    slots.new_values_BKTH.copy_(values_BTKH.transpose(1, 2))
    if num_tokens == 1:
        # The G queries that share a key take the place of tokens: no key is repeated.
        queries_BKGH = queries_BTQH.view(num_rows, num_keys, -1, head_dim)
        keys_BKSH, values_BKSH = slots.keys_BKSH, slots.values_BKSH
        if layer.window is not None:
            # Every row's newest token is in the same slot, so that a window is a slice.
            keys_BKSH, values_BKSH = keys_BKSH[:, :, -layer.window :], values_BKSH[:, :, -layer.window :]
        if layer.score_cap is not None:
            return capped_attention(layer, queries_BKGH, keys_BKSH, values_BKSH, allowed)
        return functional.scaled_dot_product_attention(
            queries_BKGH, keys_BKSH, values_BKSH, attn_mask=allowed, scale=layer.attention_scale
        )
    queries_BQTH = queries_BTQH.transpose(1, 2)
    if layer.score_cap is not None:
        if allowed is None:
            allowed = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=heads_BTXH.device).tril()
        keys_BQSH, values_BQSH = (
            one.repeat_interleave(num_queries // num_keys, dim=1)
            for one in (slots.keys_BKSH, slots.values_BKSH)
        )
        return capped_attention(layer, queries_BQTH, keys_BQSH, values_BQSH, allowed).transpose(1, 2)
    return functional.scaled_dot_product_attention(
        queries_BQTH,
        slots.keys_BKSH,
        slots.values_BKSH,
        attn_mask=allowed,
        is_causal=allowed is None,
        scale=layer.attention_scale,
        enable_gqa=True,
    ).transpose(1, 2)


def capped_attention(
    layer: LayerWeights,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    allowed: torch.Tensor | None,
) -> torch.Tensor:
    """Return what queries gather with scores `cap * tanh(score / cap)` (arXiv 2408.00118).

    Args:
        layer: its scale and its cap.
        queries: [..., T, H].
        keys: [..., S, H].
        values: [..., S, H].
        allowed: true where a slot may be seen; None for all.
    """
    assert layer.score_cap is not None
    scores = queries @ keys.transpose(-1, -2) * layer.attention_scale
    scores = torch.tanh(scores / layer.score_cap) * layer.score_cap
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype) @ values
