"""The norm and the attention of a Megatron-core layer, in plain PyTorch.

Megatron-core takes both from Transformer Engine where it must; its own forms refuse sequence parallelism (the norm),
context parallelism and packed rows (the attention). These compute what the Hugging Face models compute.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional

from refrl.policy.megatron.context import gather_context, positions_of_context


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32, its result rounded before it meets the weight."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float) -> None:
        """Make the weight; under sequence parallelism its gradient is of this rank's tokens, and marked so."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        """Return the normalised states, [..., hidden_size]."""
        wide = states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(states.dtype)


class CoreAttention(nn.Module):
    """Causal attention between the heads of this rank, over the tokens of all context-parallel ranks."""

    def __init__(self, config: TransformerConfig, pg_collection: Any = None, **layer: Any) -> None:
        """Take what Megatron-core gives a core attention.

        Args:
            config: of the model.
            pg_collection: the process groups.
            layer: its number and kind; every layer is causal self-attention here.
        """
        super().__init__()
        self._context = pg_collection.cp
        self._scale = layer.get("softmax_scale")
        self.config = config

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> Tensor:
        """Attend (n tokens, b rows).

        Args:
            query: [n, b, heads, head_dim].
            key: [n, b, key heads, head_dim].
            value: as `key`.
            attention_mask: added to the scores, [b, 1, n, n]; None lets every token see those before it.
            options: what other forms of attention take.

        Returns:
            [n, b, heads * head_dim].
        """
        num_tokens = query.shape[0]
        if self._context.size() > 1:
            key, value = gather_context(key, self._context), gather_context(value, self._context)
            if attention_mask is None and num_tokens:
                attention_mask = self._causal_mask(num_tokens, key.shape[0], query)
        heads_first = (1, 2, 0, 3)
        attended = functional.scaled_dot_product_attention(
            query.permute(heads_first),
            key.permute(heads_first),
            value.permute(heads_first),
            attn_mask=attention_mask,
            is_causal=attention_mask is None,
            scale=self._scale,
            enable_gqa=query.shape[2] != key.shape[2],
        )
        return attended.permute(2, 0, 1, 3).flatten(2)

    def _causal_mask(self, num_own: int, num_all: int, like: Tensor) -> Tensor:
        """Return which of all tokens each of this rank's may see, [own, all]."""
        own_N = positions_of_context(num_all, self._context.rank(), self._context.size(), like.device)
        assert len(own_N) == num_own
        return own_N[:, None] >= torch.arange(num_all, device=like.device)


def layer_spec(config: TransformerConfig, *, experts: bool) -> ModuleSpec:
    """Return what a layer of the model is made of, with or without experts."""
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if experts else None,
        moe_grouped_gemm=False,
        qk_layernorm=config.qk_layernorm,
        normalization="RMSNorm",
    )
    attention = spec.submodules.self_attention
    per_head = RMSNorm if config.qk_layernorm else IdentityOp
    spec.submodules = replace(
        spec.submodules,
        input_layernorm=RMSNorm,
        pre_mlp_layernorm=RMSNorm,
        self_attention=replace(
            attention,
            submodules=replace(
                attention.submodules,
                core_attention=CoreAttention,
                q_layernorm=per_head,
                k_layernorm=per_head,
            ),
        ),
    )
    return spec
