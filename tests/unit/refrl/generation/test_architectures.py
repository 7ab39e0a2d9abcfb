"""The fast decoders sample greedily what Hugging Face's own `generate` does, on every architecture that they serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from refrl.generation import lean_check, lean_support, lean_traits, lean_weights
from refrl.generation.base import SamplingParams
from refrl.generation.lean_norms import Norm
from refrl.generation.static import decoder as static_decoder
from refrl.generation.static.ops import DeviceOps, has_plain_attention
from refrl.generation.torch_engine import TorchGenerator

from .conftest import largest_gap, make_model
from .tiny_models import ARCHITECTURES

NUM_TOKENS = 12
STOPS = tuple(range(0, 48, 5))
GREEDY = SamplingParams(NUM_TOKENS, greedy=True, stop_token_ids=STOPS)
NO_OWN_FORWARD = "own forward"


def greedy(engine: TorchGenerator, prompts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Sample, and check that no decoder stepped aside: then the model would be compared with itself."""
    assert NO_OWN_FORWARD not in engine.engine
    return [row.ids for row in engine.generate(prompts, GREEDY, torch.Generator().manual_seed(0))]


def generated(model: PreTrainedModel, prompt: Sequence[int]) -> tuple[int, ...]:
    """Return what Hugging Face's `generate` appends to a prompt of its own."""
    ids = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        eos_token_id=list(STOPS),
        pad_token_id=0,
    )
    return tuple(ids[0, len(prompt) :].tolist())


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_greedy_tokens_equal_those_of_hugging_face(
    name: str, ragged_prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token by token, in blocks, and in blocks with the operations that a captured graph can hold."""
    model = make_model(name)
    of_prompt = {tuple(prompt): generated(model, prompt) for prompt in ragged_prompts}
    right = [of_prompt[tuple(prompt)] for prompt in ragged_prompts]
    assert greedy(TorchGenerator(model, 0, block_tokens=0), ragged_prompts) == right
    assert greedy(TorchGenerator(model, 0, block_tokens=4), ragged_prompts) == right
    monkeypatch.setattr(static_decoder, "_ops_of", lambda device: DeviceOps())
    assert greedy(TorchGenerator(model, 0, block_tokens=4), ragged_prompts) == right


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_bfloat16_stays_within_its_rounding_on_every_architecture(
    name: str, ragged_prompts: list[list[int]]
) -> None:
    """The model's own cached forward is this far from its plain forward too."""
    model = make_model(name).to(torch.bfloat16)
    for block_tokens in (0, 4):
        engine = TorchGenerator(model, 0, block_tokens=block_tokens)
        assert NO_OWN_FORWARD not in engine.engine
        params = SamplingParams(NUM_TOKENS, stop_token_ids=())
        rows = engine.generate(ragged_prompts, params, torch.Generator().manual_seed(0))
        assert largest_gap(model, rows) < 0.15


def test_rows_end_at_different_tokens(ragged_prompts: list[list[int]]) -> None:
    """So that the greedy comparison goes through compaction."""
    lengths = {
        len(ids)
        for name in ("llama", "gemma2", "cohere2", "phi3-sliding-partial")
        for ids in greedy(TorchGenerator(make_model(name), 0, block_tokens=4), ragged_prompts)
    }
    assert min(lengths) < 4
    assert max(lengths) > 8


def test_every_family_of_the_table_is_tested() -> None:
    tested = {f"{family}ForCausalLM" for family, _ in ARCHITECTURES.values()}
    assert tested == set(lean_traits.ARCHITECTURES)
    assert len(tested) >= 18


FLIPS = {
    "norms": ("glm4", "gemma2", "gemma3", "vaultgemma"),
    "is_parallel": ("cohere", "cohere2"),
    "has_centred_norms": ("cohere", "nemotron", "phi", "stablelm", "starcoder2"),
    "norm_offset": ("gemma", "gemma2", "gemma3", "nemotron", "vaultgemma"),
    "has_interleaved_rotary": ("cohere", "ernie4-5", "glm", "glm4", "helium"),
    "rotates_full_layers": ("cohere2", "exaone4"),
    "windows_all_layers": ("phi3-sliding-partial", "starcoder2"),
    "caps_scores": ("gemma2", "vaultgemma"),
}


@pytest.mark.parametrize(("trait", "name"), [(trait, name) for trait in FLIPS for name in FLIPS[trait]])
def test_the_check_finds_each_trait_that_is_wrong(
    trait: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(name)
    traits = lean_traits.traits_of(model)
    assert traits is not None
    assert lean_check.difference(model) is None
    default = getattr(lean_traits.Traits(), trait)
    if trait == "norms":
        default = default._replace(mlp=traits.norms.attention)
    wrong = replace(traits, **{trait: default})
    if trait == "has_centred_norms":
        # A centred norm may keep its number elsewhere.
        monkeypatch.setattr(
            lean_weights,
            "_norm",
            lambda module, traits, weight=None: Norm(module.weight if weight is None else weight, 1e-5),
        )
    monkeypatch.setattr(lean_weights, "traits_of", lambda model: wrong)
    assert "differ from the model's own" in str(lean_check.difference(model))


def test_a_model_that_only_claims_its_architecture_is_sampled_as_it_computes(
    ragged_prompts: list[list[int]],
) -> None:
    """StableLM with norms of queries and keys that the traits do not know."""
    model = make_model("stablelm-with-qk-norms")
    assert lean_support.supports_lean(model)
    for block_tokens in (0, 4):
        engine = TorchGenerator(model, 0, block_tokens=block_tokens)
        assert (
            "StableLmForCausalLM's own forward in place of the fast decoders: its logits differ"
            in engine.engine
        )
        params = SamplingParams(NUM_TOKENS, stop_token_ids=())
        rows = engine.generate(ragged_prompts, params, torch.Generator().manual_seed(0))
        assert largest_gap(model, rows) < 1e-5


def test_a_model_is_compared_again_after_weights_that_were_not_finite(
    ragged_prompts: list[list[int]],
) -> None:
    model = make_model("granite")
    engine = TorchGenerator(model, 0, block_tokens=4)
    weight = model.model.norm.weight
    saved = weight.detach().clone()
    with torch.no_grad():
        weight[0] = float("nan")
    assert "not finite" in engine.engine
    with pytest.raises(FloatingPointError, match="not finite"):
        engine.generate(ragged_prompts, GREEDY, torch.Generator().manual_seed(0))
    with torch.no_grad():
        weight.copy_(saved)
    assert engine.engine.endswith("static decoding in blocks of 4 tokens")


@pytest.mark.parametrize("name", ["gemma2", "granite", "cohere", "phi", "olmo2", "nemotron"])
def test_each_weight_that_changes_in_place_is_seen_by_the_next_call(name: str) -> None:
    """Some are read where they are, others through copies: joined projections, and norms with an offset."""
    model = make_model(name)
    engines = [TorchGenerator(model, 0, block_tokens=block_tokens) for block_tokens in (0, 4)]
    params = SamplingParams(5, stop_token_ids=())
    prompts = [[7, 9, 11], [4]]

    def sampled() -> list[list[tuple[float, ...]]]:
        return [
            [row.logprobs for row in engine.generate(prompts, params, torch.Generator().manual_seed(0))]
            for engine in engines
        ]

    before = sampled()
    for weight_name, weight in model.named_parameters():
        saved = weight.detach().clone()
        with torch.no_grad():
            weight.add_(torch.randn_like(weight) * 0.3)
        for old, new in zip(before, sampled(), strict=True):
            assert old != new, weight_name
        with torch.no_grad():
            weight.copy_(saved)
    assert sampled() == before


def test_nan_of_an_earlier_call_does_not_reach_hidden_slots(
    ragged_prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operations of a captured graph read all slots of the cache."""
    monkeypatch.setattr(static_decoder, "_ops_of", lambda device: DeviceOps())
    model = make_model("gemma2")
    engine = TorchGenerator(model, 0, block_tokens=4)
    right = greedy(engine, ragged_prompts)
    weight = model.model.layers[0].self_attn.v_proj.weight
    saved = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="not finite"):
        engine.generate([prompt * 2 for prompt in ragged_prompts], GREEDY, torch.Generator().manual_seed(0))
    with torch.no_grad():
        weight.copy_(saved)
    assert greedy(engine, ragged_prompts) == right


def test_kernels_keep_the_layers_that_they_compute() -> None:
    """Others take the operations in plain torch."""
    served = {
        name
        for name in ARCHITECTURES
        for weights in [lean_weights.read_weights(make_model(name))]
        if all(
            has_plain_attention(layer, None if layer.rotary is None else weights.rotaries[layer.rotary])
            for layer in weights.layers
        )
    }
    assert {"llama", "mistral", "qwen2", "qwen3", "seed-oss", "gemma", "granite", "arcee"} <= served
    assert not served & {
        "cohere", "cohere2", "exaone4", "gemma2", "gemma3", "glm", "mistral-sliding", "olmo2", "phi", "smollm3",
    }  # fmt: skip
