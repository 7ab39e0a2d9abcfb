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
    PreTrainedModel,
    StableLmConfig,
    StableLmForCausalLM,
)

from refrl.generation.base import Completion

from .tiny_models import ARCHITECTURES, SHAPE, VOCAB, build, random_weights

_GENERIC: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=128, eos_token_id=3, bos_token_id=1
        )
    ),
    "stablelm-with-qk-norms": lambda: StableLmForCausalLM(
        StableLmConfig(**SHAPE, qk_layernorm=True, use_qkv_bias=True)
    ),
    "llama-dynamic-rope": lambda: LlamaForCausalLM(
        LlamaConfig(
            **{**SHAPE, "max_position_embeddings": 16},
            rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        )
    ),
}
LEAN_NAMES = tuple(ARCHITECTURES)
GENERIC_NAMES = tuple(name for name in _GENERIC if name != "stablelm-with-qk-norms")


def make_model(name: str, *, seed: int = 0) -> PreTrainedModel:
    """Build a model in which every weight is random: norms and biases too, which start as ones and zeros."""
    torch.manual_seed(seed)
    model = _GENERIC[name]() if name in _GENERIC else build(name)
    return random_weights(model, seed)


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
