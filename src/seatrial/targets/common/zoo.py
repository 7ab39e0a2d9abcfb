"""Tiny models, one for each trait that has broken trainers, made in milliseconds and without a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.tiny import made_model

SIZES: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, kw_only=True)
class Trait:
    """An architecture of Transformers with a trait."""

    family: str = "Qwen2"
    """Prefix of its classes."""
    causal: str = "ForCausalLM"
    """Suffix of its class with a language model's head."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of its configuration."""
    more_ids: int = 0
    """Rows of the embedding and head beyond the tokenizer's vocabulary; negative ones are missing."""
    dropout: float = 0.0
    """Largest probability of dropout in training mode."""
    dtype: str = "float32"


ZOO: Mapping[str, Trait] = {
    "": Trait(),
    "learned positions": Trait(
        family="GPT2",
        causal="LMHeadModel",
        options={
            "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256,
            "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        },
    ),
    "head with layers": Trait(
        family="ModernBertDecoder",
        options={
            "local_attention": 128, "attention_dropout": 0.0,
            "bos_token_id": 0, "cls_token_id": 0, "sep_token_id": 0,
        },
    ),
    "token types": Trait(
        family="Bert",
        causal="LMHeadModel",
        options={"is_decoder": True, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    ),
    "logit_scale": Trait(family="Cohere", options={"logit_scale": 0.3}),
    "logits_scaling": Trait(family="Granite", options={"logits_scaling": 3.0, "embedding_multiplier": 2.0}),
    "final_logit_softcapping": Trait(
        family="Gemma2",
        options={"final_logit_softcapping": 0.5, "head_dim": 8, "sliding_window": 6, "hidden_activation": "gelu"},
    ),
    "lm_head_multiplier": Trait(
        family="FalconH1",
        options={
            "lm_head_multiplier": 0.3, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8,
            "mamba_d_state": 8, "mamba_n_groups": 1,
        },
    ),
    "head with a bias": Trait(
        family="Phi", options={"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0}
    ),
    "tied head": Trait(options={"tie_word_embeddings": True}),
    "experts": Trait(
        family="Qwen3Moe",
        options={
            "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "norm_topk_prob": True, "experts_implementation": "eager",
        },
    ),
    "sliding window": Trait(family="Mistral", options={"sliding_window": 4}),
    "recurrent": Trait(
        family="Mamba2",
        options={"num_heads": 8, "head_dim": 8, "expand": 2, "state_size": 8, "n_groups": 1, "chunk_size": 8},
    ),
    "wide vocabulary": Trait(more_ids=7),
    "narrow vocabulary": Trait(more_ids=-40),
    "dropout": Trait(family="Phi", options={"resid_pdrop": 0.2, "embd_pdrop": 0.1}, dropout=0.2),
    "attention dropout": Trait(options={"attention_dropout": 0.2}, dropout=0.2),
    "bfloat16": Trait(dtype="bfloat16"),
}  # fmt: skip
"""By the name of the trait; the first one has none."""


def zoo_model(name: str, tokenizer: Any, seed: int, *, scores: bool = False, **options: Any) -> Any:
    """Return a model with a trait; the same seed gives the same weights.

    Args:
        name: of the trait.
        tokenizer: whose vocabulary it has.
        seed: of the weights.
        scores: whether it gives a sequence one score, in place of logits.
        **options: further ones of its configuration.
    """
    import transformers

    trait = ZOO[name]
    config_class: Any = getattr(transformers, f"{trait.family}Config")
    ids = {
        "vocab_size": len(tokenizer) + trait.more_ids,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
    config = config_class(**{**SIZES, **ids, **trait.options, **options})
    if scores:
        config.num_labels = 1
    suffix = "ForSequenceClassification" if scores else trait.causal
    model = made_model(getattr(transformers, f"{trait.family}{suffix}"), config, seed)
    head = model.get_output_embeddings()
    if getattr(head, "bias", None) is not None:  # Transformers begins with zeros, which change no logit
        head.bias.data.normal_(generator=torch.Generator().manual_seed(seed))
    return model.to(getattr(torch, trait.dtype))


def balance_loss(logits: Sequence[Tensor], num_chosen: int) -> Tensor:
    """Return the load-balancing loss of routers (Fedus et al. 2022, equations 4 to 6), layers and tokens pooled.

    Args:
        logits: of the routers, one [tokens, experts] for each layer.
        num_chosen: experts of a token.
    """
    probs_NE = torch.cat(list(logits)).double().softmax(-1)
    chosen_NE = torch.zeros_like(probs_NE).scatter_(1, probs_NE.topk(num_chosen).indices, 1.0)
    return probs_NE.shape[1] * (chosen_NE.mean(0) * probs_NE.mean(0)).sum()
