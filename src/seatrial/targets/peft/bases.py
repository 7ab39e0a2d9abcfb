"""Tiny base models, one for each trait that adapters treat apart: linear and transposed layers, tied heads, experts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.tiny import WEIGHT_SCALE
from seatrial.targets.peft.nets import NETS, net

Trait = Literal[
    "linear",
    "tied",
    "conv1d",
    "experts",
    "scaled embedding",
    "replicated",
    "to be replicated",
    "conv1",
    "conv2",
    "conv2 of one",
    "conv2 dilated",
    "conv2 circular",
    "conv2 grouped",
    "conv3",
    "attention",
    "experts of modules",
    "modules after it",
    "tokens classified",
    "texts classified",
]
TASKS: Mapping[str, str] = {"tokens classified": "TOKEN_CLS", "texts classified": "SEQ_CLS"}
"""What a model is for, by the trait; others are causal language models."""
VOCAB = 48
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def base(trait: Trait, dtype: torch.dtype) -> Any:
    """Return a new causal language model on the CPU; its weights are the same every time, rounded to the dtype.

    Raises:
        NotServed: the installed Transformers keeps the experts of a layer as modules, not as one tensor.
    """
    return copy.deepcopy(_made(trait)).to(dtype)


@lru_cache(maxsize=16)
def _made(trait: Trait) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _model(trait).float()
    with torch.no_grad():
        for name, value in [] if "replicated" in trait else model.named_parameters():
            if value.dim() > 1 and "wpe" not in name:
                value.mul_(WEIGHT_SCALE)
            elif name.endswith("bias"):
                # A fresh bias is zero, and hides that it is lost.
                value.add_(torch.linspace(-0.3, 0.3, len(value)))
    if trait == "experts" and not any(
        name.endswith("experts.down_proj") for name, _ in model.named_parameters()
    ):
        raise NotServed("the installed Transformers keeps experts as modules, not as one tensor of a layer")
    return model.eval().requires_grad_(True)


def _model(trait: Trait) -> Any:
    import transformers

    if trait in NETS:
        return net(trait, VOCAB)
    library: Any = transformers
    if trait == "conv1d":
        return library.GPT2LMHeadModel(
            library.GPT2Config(
                vocab_size=VOCAB,
                n_embd=32,
                n_layer=2,
                n_head=4,
                n_positions=64,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                tie_word_embeddings=False,
            )
        )
    if trait == "tokens classified":
        return library.Qwen2ForTokenClassification(
            library.Qwen2Config(**_SIZES, num_labels=3, classifier_dropout=0.0)
        )
    if trait == "texts classified":
        return library.BertForSequenceClassification(
            library.BertConfig(
                **{name: size for name, size in _SIZES.items() if name != "num_key_value_heads"},
                num_labels=3,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )
    if trait == "experts":
        return library.MixtralForCausalLM(
            library.MixtralConfig(
                **_SIZES,
                num_local_experts=4,
                num_experts_per_tok=2,
                tie_word_embeddings=False,
                sliding_window=None,
            )
        )
    if trait in ("replicated", "to be replicated"):
        return _replicated(3 if trait == "replicated" else 2)
    if trait == "scaled embedding":
        if not hasattr(library, "Gemma3ForCausalLM"):
            raise NotServed(
                "the installed Transformers has no Gemma3, whose embedding has a scale of its own"
            )
        return library.Gemma3ForCausalLM(
            library.Gemma3TextConfig(
                **_SIZES, head_dim=8, query_pre_attn_scalar=8, sliding_window=64, tie_word_embeddings=False
            )
        )
    return library.Qwen2ForCausalLM(library.Qwen2Config(**_SIZES, tie_word_embeddings=trait == "tied"))


def _replicated(num_layers: int) -> Any:
    """Return a model of two layers, whose second layer is there twice where it has three."""
    import transformers

    library: Any = transformers
    config = {**_SIZES, "num_hidden_layers": 2, "tie_word_embeddings": False}
    given = library.LlamaForCausalLM(library.LlamaConfig(**config))
    with torch.no_grad():
        for value in given.parameters():
            value.mul_(WEIGHT_SCALE if value.dim() > 1 else 1)
    if num_layers == 2:
        return given
    made = library.LlamaForCausalLM(library.LlamaConfig(**{**config, "num_hidden_layers": num_layers}))
    weights = given.state_dict()
    copies = {
        name.replace("layers.1.", "layers.2."): value
        for name, value in weights.items()
        if "layers.1." in name
    }
    made.load_state_dict({**weights, **copies})
    return made
