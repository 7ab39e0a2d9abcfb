"""The operations of a token step in plain torch: the reference for the fused kernels, and what runs on a CPU.

Shapes: R rows, D width, X heads of queries, keys and values side by side, Q query heads, K key/value heads, N = Q + K,
H width of a head, S slots of the cache, I width of the MLP, T tokens of a completion, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from refrl.generation.base import SamplingParams
from refrl.generation.lean_decoder import capped_attention
from refrl.generation.lean_norms import Norm, NormLike
from refrl.generation.lean_rotary import Rotary
from refrl.generation.lean_weights import LayerWeights, LeanWeights
from refrl.generation.sampling import draw, is_filtered


class Counters:
    """Where a call of `generate` is, on the device, so that a captured graph reads and advances it."""

    def __init__(self, device: torch.device) -> None:
        self.slot = torch.zeros(1, dtype=torch.int64, device=device)
        """Slot of the cache that the next token step writes."""
        self.token = torch.zeros(1, dtype=torch.int64, device=device)
        """Place in the completions of the token that the next step samples."""

    def set(self, slot: int, token: int) -> None:
        """Start at this slot and this token."""
        self.slot.fill_(slot)
        self.token.fill_(token)

    def advance(self) -> None:
        """Go to the next slot and token."""
        self.slot.add_(1)
        self.token.add_(1)


class Turns(NamedTuple):
    """A rotary embedding with its tables."""

    rotary: Rotary
    rotary_2SH: torch.Tensor
    """cos and sin of every position."""


class Ops(Protocol):
    """What a token step is made of."""

    def reads_all_slots(self, weights: LeanWeights) -> bool:
        """Return whether `attend` reads slots of the cache that no token has filled, and hides them."""
        ...

    def add_norm(
        self, hidden_RD: torch.Tensor, delta_RD: torch.Tensor | None, norm: NormLike
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (hidden + delta, its norm)."""
        ...

    def attend(
        self,
        layer: LayerWeights,
        heads_RXH: torch.Tensor,
        turns: Turns | None,
        cache_2RKSH: torch.Tensor,
        first_slot_R: torch.Tensor,
        counters: Counters,
    ) -> torch.Tensor:
        """Write the token's key and value into the cache at `counters.slot`; return what the queries gather [R, Q * H].

        Each row attends to the slots from its `first_slot_R`, or those of the layer's window, up to the new one; its
        position is counted from `first_slot_R`.
        """
        ...

    def activated(self, layer: LayerWeights, up: torch.Tensor) -> torch.Tensor:
        """Return the activations of the MLP from gate and up, side by side, or from up alone."""
        ...

    def sample(
        self,
        logits_RV: torch.Tensor,
        params: SamplingParams,
        uniforms_TR: torch.Tensor,
        ids_TR: torch.Tensor,
        logprobs_TR: torch.Tensor,
        last_ids_R: torch.Tensor,
        counters: Counters,
    ) -> torch.Tensor | None:
        """Draw one token a row with the random numbers of `counters.token`; write id and log-probability.

        Returns:
            kept_RV, true on the ids that the filters kept; None where no filter is on.
        """
        ...


class TorchOps:
    """`Ops` in plain torch; the counters are read by the host, so that this cannot be captured in a graph."""

    def reads_all_slots(self, weights: LeanWeights) -> bool:
        """See `Ops.reads_all_slots`."""
        return False

    def add_norm(
        self, hidden_RD: torch.Tensor, delta_RD: torch.Tensor | None, norm: NormLike
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.add_norm`."""
        if delta_RD is not None:
            hidden_RD = hidden_RD + delta_RD
        return hidden_RD, norm(hidden_RD)

    def attend(
        self,
        layer: LayerWeights,
        heads_RXH: torch.Tensor,
        turns: Turns | None,
        cache_2RKSH: torch.Tensor,
        first_slot_R: torch.Tensor,
        counters: Counters,
    ) -> torch.Tensor:
        """See `Ops.attend`."""
        slot = int(counters.slot)
        queries_RQH, keys_RKH, values_RKH = _turned(layer, heads_RXH, turns, slot - first_slot_R)
        cache_2RKSH[0, :, :, slot] = keys_RKH
        cache_2RKSH[1, :, :, slot] = values_RKH
        start = 0 if layer.window is None else max(0, slot + 1 - layer.window)
        keys_RKSH, values_RKSH = cache_2RKSH[:, :, :, start : slot + 1]
        slots_S = torch.arange(start, slot + 1, device=first_slot_R.device)
        allowed_R11S = (slots_S >= first_slot_R[:, None])[:, None, None]
        return _gathered(layer, queries_RQH, keys_RKSH, values_RKSH, allowed_R11S)

    def activated(self, layer: LayerWeights, up: torch.Tensor) -> torch.Tensor:
        """See `Ops.activated`."""
        if not layer.is_gated:
            return layer.activation(up)
        gate_RI, up_RI = up.chunk(2, dim=-1)
        return layer.activation(gate_RI) * up_RI

    def sample(
        self,
        logits_RV: torch.Tensor,
        params: SamplingParams,
        uniforms_TR: torch.Tensor,
        ids_TR: torch.Tensor,
        logprobs_TR: torch.Tensor,
        last_ids_R: torch.Tensor,
        counters: Counters,
    ) -> torch.Tensor | None:
        """See `Ops.sample`."""
        ids_R, logprobs_R, kept_RV = draw(logits_RV, uniforms_TR.index_select(0, counters.token)[0], params)
        ids_TR.index_copy_(0, counters.token, ids_R[None])
        logprobs_TR.index_copy_(0, counters.token, logprobs_R[None])
        last_ids_R.copy_(ids_R)
        return kept_RV


class DeviceOps(TorchOps):
    """`TorchOps` that leave the counters on the device, for layers that no kernel serves; all slots are read."""

    def reads_all_slots(self, weights: LeanWeights) -> bool:
        """See `Ops.reads_all_slots`."""
        return True

    def attend(
        self,
        layer: LayerWeights,
        heads_RXH: torch.Tensor,
        turns: Turns | None,
        cache_2RKSH: torch.Tensor,
        first_slot_R: torch.Tensor,
        counters: Counters,
    ) -> torch.Tensor:
        """See `Ops.attend`."""
        queries_RQH, keys_RKH, values_RKH = _turned(layer, heads_RXH, turns, counters.slot - first_slot_R)
        keys_RKSH, values_RKSH = cache_2RKSH
        keys_RKSH.index_copy_(2, counters.slot, keys_RKH.unsqueeze(2))
        values_RKSH.index_copy_(2, counters.slot, values_RKH.unsqueeze(2))
        slots_S = torch.arange(keys_RKSH.shape[2], device=first_slot_R.device)
        allowed_RS = (first_slot_R[:, None] <= slots_S) & (slots_S <= counters.slot)
        if layer.window is not None:
            allowed_RS &= slots_S > counters.slot - layer.window
        return _gathered(layer, queries_RQH, keys_RKSH, values_RKSH, allowed_RS[:, None, None])


def has_plain_attention(layer: LayerWeights, rotary: Rotary | None) -> bool:
    """Return whether a layer attends to all tokens, with heads turned by halves, as the kernels do."""
    return (
        layer.window is None
        and layer.score_cap is None
        and rotary is not None
        and len(rotary.parts) == 2
        and not rotary.is_interleaved
        and (layer.qk_norm is None or has_plain_rounding(layer.qk_norm))
    )


def has_plain_rounding(norm: NormLike) -> bool:
    """Return whether this is a root-mean-square norm that rounds before it scales, as the kernels do."""
    return isinstance(norm, Norm) and not norm.rounds_last


def _turned(
    layer: LayerWeights, heads_RXH: torch.Tensor, turns: Turns | None, positions_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, keys and values at these positions."""
    num_queries, num_keys = layer.num_query_heads, layer.num_kv_heads
    qk_RNH, values_RKH = heads_RXH.split_with_sizes((num_queries + num_keys, num_keys), dim=1)
    if layer.qk_norm is not None:
        qk_RNH = layer.qk_norm(qk_RNH)
    if turns is not None:
        cos_R1H, sin_R1H = turns.rotary_2SH[:, positions_R].unsqueeze(2)
        qk_RNH = turns.rotary.turn(qk_RNH, cos_R1H, sin_R1H)
    queries_RQH, keys_RKH = qk_RNH.split_with_sizes((num_queries, num_keys), dim=1)
    return queries_RQH, keys_RKH, values_RKH


def _gathered(
    layer: LayerWeights,
    queries_RQH: torch.Tensor,
    keys_RKSH: torch.Tensor,
    values_RKSH: torch.Tensor,
    allowed_R11S: torch.Tensor,
) -> torch.Tensor:
    """Return what the queries gather, [R, Q * H]."""
    # The queries that share a key take the place of tokens: no key is repeated.
    queries_RKGH = queries_RQH.unflatten(1, (layer.num_kv_heads, -1))
    if layer.score_cap is not None:
        return capped_attention(layer, queries_RKGH, keys_RKSH, values_RKSH, allowed_R11S).flatten(1)
    mixed_RKGH = functional.scaled_dot_product_attention(
        queries_RKGH, keys_RKSH, values_RKSH, attn_mask=allowed_R11S, scale=layer.attention_scale
    )
    return mixed_RKGH.flatten(1)


def needs_torch_sampling(params: SamplingParams, vocab_size: int) -> bool:
    """Return whether tokens are drawn by `draw`: greedily, or from a part of the vocabulary."""
    return params.greedy or is_filtered(params, vocab_size)
