"""Tiny models of random weights, and the oracle that generation is held to: the plain forward without a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
)

from refrl.generation.base import Completion

VOCAB = 48
END_IDS = (3, 5)

_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": list(END_IDS),
    "pad_token_id": 0,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

_LEAN: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE)),
    "llama-tied-biased": lambda: LlamaForCausalLM(
        LlamaConfig(**_SHAPE, tie_word_embeddings=True, attention_bias=True, mlp_bias=True)
    ),
    "llama-one-head-per-key": lambda: LlamaForCausalLM(LlamaConfig(**{**_SHAPE, "num_key_value_heads": 4})),
    "llama-head-dim": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE, head_dim=16)),
    "llama-llama3-rope": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3)),
    "llama-yarn": lambda: LlamaForCausalLM(LlamaConfig(**_SHAPE, rope_parameters=_YARN)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**_SHAPE, sliding_window=None, head_dim=16)),
    "seed-oss": lambda: SeedOssForCausalLM(
        SeedOssConfig(**_SHAPE, head_dim=16, attention_bias=True, attention_out_bias=True)
    ),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_SHAPE, head_dim=16)),
    "qwen3-tied-biased": lambda: Qwen3ForCausalLM(
        Qwen3Config(**_SHAPE, head_dim=8, tie_word_embeddings=True, attention_bias=True)
    ),
}
_GENERIC: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128, eos_token_id=3, bos_token_id=1
        )
    ),
    "mistral-sliding": lambda: MistralForCausalLM(MistralConfig(**_SHAPE, sliding_window=4)),
    "qwen2-sliding": lambda: Qwen2ForCausalLM(
        Qwen2Config(**_SHAPE, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    ),
    "llama-dynamic-rope": lambda: LlamaForCausalLM(
        LlamaConfig(
            **{**_SHAPE, "max_position_embeddings": 16},
            rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        )
    ),
}
LEAN_NAMES = tuple(_LEAN)
GENERIC_NAMES = tuple(_GENERIC)


def make_model(name: str, *, seed: int = 0) -> PreTrainedModel:
    """Build a model in which every weight is random: norms and biases too, which start as ones and zeros."""
    torch.manual_seed(seed)
    model = {**_LEAN, **_GENERIC}[name]().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.15)
    return model


def plain_logprobs(
    model: PreTrainedModel, completion: Completion, *, temperature: float = 1.0
) -> torch.Tensor:
    """Score a completion by one forward of its own row: no cache, no padding, no batch."""
    prompt_len = len(completion.prompt_ids)
    ids = torch.tensor([completion.prompt_ids + completion.ids], device=model.device)
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0].float() / temperature
    logprobs = torch.log_softmax(logits[prompt_len - 1 : -1], dim=-1)
    return logprobs.gather(-1, ids[0, prompt_len:, None]).squeeze(-1).cpu()


def largest_gap(
    model: PreTrainedModel, completions: Sequence[Completion], *, temperature: float = 1.0
) -> float:
    """Return the largest distance of reported log-probabilities from those of the plain forward."""
    return max(
        float((plain_logprobs(model, row, temperature=temperature) - torch.tensor(row.logprobs)).abs().max())
        for row in completions
    )


@pytest.fixture
def ragged_prompts() -> list[list[int]]:
    """Prompts of 1 to 11 tokens in no order, some of them equal."""
    short, middle, long = [7], [9, 11, 2, 30], [40, 3, 3, 8, 21, 6, 45, 17, 1, 33, 12]
    return [middle, long, short, middle, middle, short, long, [22, 14]]
