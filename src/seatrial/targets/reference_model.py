"""The tiny model that refrl's components are exercised with."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from transformers import PreTrainedModel

PAD_ID = 0
TEMPERATURE = 0.7
"""That the adapter trains and scores at."""


@cache
def tiny_model() -> PreTrainedModel:
    """Return a tiny Qwen3 in float32 with eager attention, made once per process; weights are the same every time."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        config = Qwen3Config(
            vocab_size=37,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            pad_token_id=PAD_ID,
            eos_token_id=1,
            bos_token_id=2,
            # Wider than usual: the distribution is peaked, so that wrong positions and temperatures show.
            initializer_range=0.25,
        )
        model = Qwen3ForCausalLM(config).eval()  # type: ignore[no-untyped-call]
    assert isinstance(model, PreTrainedModel)
    return model


def hidden_states(input_ids_BS: Tensor, attention_mask_BS: Tensor, position_ids_BS: Tensor) -> Tensor:
    """Return the states after the final norm, [B, S, D], with gradient."""
    states_BSD: Tensor = (
        tiny_model()
        .base_model(
            input_ids=input_ids_BS,
            attention_mask=attention_mask_BS,
            position_ids=position_ids_BS,
            use_cache=False,
        )
        .last_hidden_state
    )
    return states_BSD


def head_weight() -> Tensor:
    """Return the weight of the output head, [V, D]."""
    weight_VD: Tensor = tiny_model().get_output_embeddings().weight  # type: ignore[no-untyped-call]
    return weight_VD
