"""Tiny models of every architecture that the fast decoders serve, with what could go wrong switched on.

Heads are wider than width / heads, windows are shorter than a row and mixed with full layers, biases and multipliers
are set, and `random_weights` leaves no norm at one and no bias at zero.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

VOCAB = 48
END_IDS = (3, 5)
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": list(END_IDS),
    "pad_token_id": 0,
}
_MIXED = {
    "num_hidden_layers": 3,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_TWO_ROTARIES = {
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    }
}
_PARTIAL = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "arcee": ("Arcee", {"attention_bias": True, "mlp_bias": True}),
    "cohere": ("Cohere", {"use_qk_norm": True, "logit_scale": 0.3, "attention_bias": True}),
    "cohere-without-norm": ("Cohere", {"tie_word_embeddings": False}),
    "cohere2": ("Cohere2", {"head_dim": 16, **_MIXED}),
    "cwm": ("Cwm", {"head_dim": 16, **_MIXED}),
    "ernie4-5": ("Ernie4_5", {"head_dim": 16, "use_bias": True}),
    "exaone4": ("Exaone4", {"head_dim": 16, **_MIXED}),
    "exaone4-full": (
        "Exaone4",
        {"head_dim": 16, "sliding_window": None, "layer_types": ["full_attention"] * 2},
    ),
    "gemma": ("Gemma", {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 3,
            "attn_logit_softcapping": 0.7,
            "final_logit_softcapping": 2.0,
            **_MIXED,
        },
    ),
    "gemma3": ("Gemma3", {"head_dim": 16, "query_pre_attn_scalar": 7, **_MIXED, **_TWO_ROTARIES}),
    "glm": ("Glm", {"head_dim": 16, "attention_bias": True, **_PARTIAL}),
    "glm4": ("Glm4", {"head_dim": 16, "attention_bias": True, **_PARTIAL}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 1.7,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "helium": ("Helium", {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": True}),
    "llama": ("Llama", {}),
    "llama-tied-biased": ("Llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-one-head-per-key": ("Llama", {"num_key_value_heads": 4}),
    "llama-head-dim": ("Llama", {"head_dim": 16}),
    "llama-llama3-rope": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama-yarn": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "ministral": ("Ministral", {"head_dim": 16, **_MIXED}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral-sliding": ("Mistral", {"sliding_window": 4}),
    "nemotron": ("Nemotron", {"head_dim": 16, "attention_bias": True, "mlp_bias": True, **_PARTIAL}),
    "olmo2": ("Olmo2", {"attention_bias": True}),
    "olmo2-one-key-head": ("Olmo2", {"num_key_value_heads": 1}),
    "olmo3": ("Olmo3", {**_MIXED, **_TWO_ROTARIES}),
    "phi": ("Phi", _PARTIAL),
    "phi3": ("Phi3", {"head_dim": 16}),
    "phi3-sliding-partial": ("Phi3", {"sliding_window": 4, **_PARTIAL}),
    "qwen2": ("Qwen2", {}),
    "qwen2-sliding": ("Qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-sliding": ("Qwen3", {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 1}),
    "qwen3-tied-biased": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
    "seed-oss": ("SeedOss", {"head_dim": 16, "attention_bias": True, "attention_out_bias": True}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0], "attention_bias": True}),
    "smollm3-sliding": (
        "SmolLM3",
        {"no_rope_layers": [1, 0], "use_sliding_window": True, "sliding_window": 4},
    ),
    "stablelm": ("StableLm", {"use_qkv_bias": True, **_PARTIAL}),
    "stablelm-parallel": ("StableLm", {"use_parallel_residual": True, **_PARTIAL}),
    "starcoder2": ("Starcoder2", {"sliding_window": 4, "use_bias": True}),
    "vaultgemma": (
        "VaultGemma",
        {"head_dim": 16, "attn_logit_softcapping": 0.7, "query_pre_attn_scalar": 3, **_MIXED},
    ),
}
"""By name: the family in Transformers, and its options on top of `SHAPE`."""


def random_weights(model: PreTrainedModel, seed: int = 0, scale: float = 0.15) -> PreTrainedModel:
    """Add random numbers to every weight: norms and biases too, which start as ones and zeros."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * scale)
    return model.eval()


def build(name: str) -> PreTrainedModel:
    """Return the model of a row of `ARCHITECTURES`, with the attention that `refrl.models.loading` gives it."""
    family, options = ARCHITECTURES[name]
    if "attn_logit_softcapping" in options:
        options = {**options, "attn_implementation": "eager"}
    model_class = getattr(transformers, f"{family}ForCausalLM")
    model: PreTrainedModel = model_class(model_class.config_class(**{**SHAPE, **options}))
    return model
