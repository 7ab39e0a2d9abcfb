"""The operations of a token step in plain torch: the reference for the fused kernels, and what runs on a CPU.

Shapes: R rows, D width, X heads of queries, keys and values side by side, Q query heads, K key/value heads, N = Q + K,
H width of a head, S slots of the cache, I width of the MLP, T tokens of a completion, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

from refrl.generation.base import SamplingParams
from refrl.generation.lean_decoder import LayerWeights, Norm
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


class Ops(Protocol):
    """What a token step is made of."""

    def add_norm(
        self, hidden_RD: torch.Tensor, delta_RD: torch.Tensor | None, norm: Norm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (hidden + delta, its norm)."""
        ...

    def attend(
        self,
        layer: LayerWeights,
        heads_RXH: torch.Tensor,
        rotary_2SH: torch.Tensor,
        cache_2RKSH: torch.Tensor,
        first_slot_R: torch.Tensor,
        counters: Counters,
    ) -> torch.Tensor:
        """Write the token's key and value into the cache at `counters.slot`; return what the queries gather [R, Q * H].

        Each row attends to the slots from its `first_slot_R` up to the new one; its position is counted from there.
        """
        ...

    def gated(self, gate_up_R2I: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) * up."""
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

    def add_norm(
        self, hidden_RD: torch.Tensor, delta_RD: torch.Tensor | None, norm: Norm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.add_norm`."""
        if delta_RD is not None:
            hidden_RD = hidden_RD + delta_RD
        return hidden_RD, norm(hidden_RD)

    def attend(
        self,
        layer: LayerWeights,
        heads_RXH: torch.Tensor,
        rotary_2SH: torch.Tensor,
        cache_2RKSH: torch.Tensor,
        first_slot_R: torch.Tensor,
        counters: Counters,
    ) -> torch.Tensor:
        """See `Ops.attend`."""
        slot = int(counters.slot)
        num_queries, num_keys = layer.num_query_heads, layer.num_kv_heads
        qk_RNH, values_RKH = heads_RXH.split_with_sizes((num_queries + num_keys, num_keys), dim=1)
        if layer.qk_norm is not None:
            qk_RNH = layer.qk_norm(qk_RNH)
        cos_R1H, sin_R1H = rotary_2SH[:, slot - first_slot_R].unsqueeze(2)
        first, second = qk_RNH.chunk(2, dim=-1)
        qk_RNH = torch.addcmul(qk_RNH * cos_R1H, torch.cat([second, first], dim=-1), sin_R1H)
        queries_RQH, keys_RKH = qk_RNH.split_with_sizes((num_queries, num_keys), dim=1)
        cache_2RKSH[0, :, :, slot] = keys_RKH
        cache_2RKSH[1, :, :, slot] = values_RKH
        keys_RKSH, values_RKSH = cache_2RKSH[:, :, :, : slot + 1]
        slots_S = torch.arange(slot + 1, device=first_slot_R.device)
        allowed_R11S = (slots_S >= first_slot_R[:, None])[:, None, None]
        # The queries that share a key take the place of tokens: no key is repeated.
        mixed_RKGH = functional.scaled_dot_product_attention(
            queries_RQH.unflatten(1, (num_keys, -1)),
            keys_RKSH,
            values_RKSH,
            attn_mask=allowed_R11S,
            scale=layer.attention_scale,
        )
        return mixed_RKGH.flatten(1)

    def gated(self, gate_up_R2I: torch.Tensor) -> torch.Tensor:
        """See `Ops.gated`."""
        gate_RI, up_RI = gate_up_R2I.chunk(2, dim=-1)
        return functional.silu(gate_RI) * up_RI

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


def needs_torch_sampling(params: SamplingParams, vocab_size: int) -> bool:
    """Return whether tokens are drawn by `draw`: greedily, or from a part of the vocabulary."""
    return params.greedy or is_filtered(params, vocab_size)
