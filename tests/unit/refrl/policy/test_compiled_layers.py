"""Compiled decoder layers score what the layers themselves do, and are refused where a model has none."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from refrl.config import ConfigError
from refrl.policy.activations import compile_layers


def test_compiled_layers_give_the_same_logits_at_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's own tracer and no code generator: what is compiled is the same, and no compiler is needed."""
    config = Qwen3Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).eval()
    prompts = [torch.arange(length)[None] for length in (5, 9, 3)]
    plain = [model(input_ids=ids).logits for ids in prompts]
    compiled = []
    own_compile = nn.Module.compile

    def traced(self: nn.Module, **options: object) -> None:
        compiled.append(type(self).__name__)
        own_compile(self, backend="aot_eager", **options)

    monkeypatch.setattr(nn.Module, "compile", traced)
    compile_layers(model)
    assert compiled == ["Qwen3DecoderLayer"] * 2
    for ids, right in zip(prompts, plain, strict=True):
        torch.testing.assert_close(model(input_ids=ids).logits, right, atol=1e-5, rtol=0)


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy\.compile_layers: Linear has no layers"):
        compile_layers(nn.Linear(2, 2))
