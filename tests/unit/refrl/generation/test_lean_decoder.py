"""The lean decoder equals the module's own forward, reads its weights anew, and steps aside when it would not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers import PreTrainedModel

from refrl.generation.base import SamplingParams
from refrl.generation.lean_support import supports_lean
from refrl.generation.torch_engine import TorchGenerator

from .conftest import GENERIC_NAMES, LEAN_NAMES, largest_gap, make_model

PARAMS = SamplingParams(12, stop_token_ids=())


@pytest.mark.parametrize("name", LEAN_NAMES)
def test_lean_logprobs_equal_the_plain_forward_on_ragged_prompts(
    name: str, ragged_prompts: list[list[int]]
) -> None:
    model = make_model(name)
    assert supports_lean(model)
    rows = TorchGenerator(model, 0).generate(ragged_prompts, PARAMS, torch.Generator().manual_seed(0))
    assert largest_gap(model, rows) < 1e-5


@pytest.mark.parametrize("name", LEAN_NAMES)
def test_lean_and_generic_sample_the_same_completions(name: str, ragged_prompts: list[list[int]]) -> None:
    model = make_model(name)
    lean, generic = (
        TorchGenerator(model, 0, lean=lean).generate(ragged_prompts, PARAMS, torch.Generator().manual_seed(0))
        for lean in (True, False)
    )
    assert [row.ids for row in lean] == [row.ids for row in generic]
    for ours, theirs in zip(lean, generic, strict=True):
        torch.testing.assert_close(
            torch.tensor(ours.logprobs), torch.tensor(theirs.logprobs), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("name", ["llama-tied-biased", "qwen3", "qwen2"])
def test_every_weight_of_the_live_module_is_read_anew(name: str) -> None:
    model = make_model(name)
    engine = TorchGenerator(model, 0)
    prompts = [[7, 9, 11], [4]]
    before = engine.generate(prompts, PARAMS, torch.Generator().manual_seed(0))
    for weight_name, weight in model.named_parameters():
        saved = weight.detach().clone()
        with torch.no_grad():
            weight.add_(torch.randn_like(weight) * 0.3)
        after = engine.generate(prompts, PARAMS, torch.Generator().manual_seed(0))
        assert [row.logprobs for row in after] != [row.logprobs for row in before], weight_name
        assert largest_gap(model, after) < 2e-5, weight_name
        weight.data = saved
    assert engine.generate(prompts, PARAMS, torch.Generator().manual_seed(0)) == before


def test_bfloat16_stays_within_its_rounding(ragged_prompts: list[list[int]]) -> None:
    """Eight bits of mantissa through two layers: the same bound holds the model's own cached forward."""
    model = make_model("qwen3").to(torch.bfloat16)
    assert supports_lean(model)
    for lean in (True, False):
        engine = TorchGenerator(model, 0, lean=lean)
        rows = engine.generate(ragged_prompts, PARAMS, torch.Generator().manual_seed(0))
        assert largest_gap(model, rows) < 0.15


def add_hook(model: PreTrainedModel) -> None:
    model.model.layers[1].register_forward_hook(lambda module, inputs, output: output)


def add_pre_hook(model: PreTrainedModel) -> None:
    model.lm_head.register_forward_pre_hook(lambda module, inputs: None)


def replace_forward(model: PreTrainedModel) -> None:
    projection = model.model.layers[0].mlp.down_proj
    projection.forward = lambda inputs: nn.functional.linear(inputs, projection.weight) * 2


def adapt_linear(model: PreTrainedModel) -> None:
    class Adapted(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) + 1

    projection = model.model.layers[0].self_attn.q_proj
    model.model.layers[0].self_attn.q_proj = Adapted(projection.in_features, projection.out_features)


def parametrize_weight(model: PreTrainedModel) -> None:
    class Doubled(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight * 2

    parametrize.register_parametrization(model.model.layers[0].self_attn.v_proj, "weight", Doubled())


def drop_layer(model: PreTrainedModel) -> None:
    model.config.num_hidden_layers = 1


def mix_types(model: PreTrainedModel) -> None:
    model.model.layers[0].mlp.double()


@pytest.mark.parametrize(
    "change",
    [add_hook, add_pre_hook, replace_forward, adapt_linear, parametrize_weight, drop_layer, mix_types],
)
def test_a_changed_module_goes_the_generic_way(change) -> None:
    model = make_model("llama")
    change(model)
    assert not supports_lean(model)


@pytest.mark.parametrize("change", [replace_forward, adapt_linear, parametrize_weight, drop_layer])
def test_a_changed_module_is_sampled_as_it_computes(change, ragged_prompts: list[list[int]]) -> None:
    model = make_model("llama")
    change(model)
    rows = TorchGenerator(model, 0).generate(ragged_prompts, PARAMS, torch.Generator().manual_seed(0))
    assert largest_gap(model, rows) < 1e-5


@pytest.mark.parametrize("name", GENERIC_NAMES)
def test_other_architectures_go_the_generic_way_and_are_exact(
    name: str, ragged_prompts: list[list[int]]
) -> None:
    model = make_model(name)
    assert not supports_lean(model)
    params = SamplingParams(12 if name != "llama-dynamic-rope" else 4, stop_token_ids=())
    rows = TorchGenerator(model, 0).generate(ragged_prompts, params, torch.Generator().manual_seed(0))
    assert largest_gap(model, rows) < 1e-5


def test_a_subclass_is_another_architecture() -> None:
    model = make_model("llama")
    model.__class__ = type("Other", (type(model),), {})
    assert not supports_lean(model)


def test_large_models_are_read_without_joining(
    monkeypatch: pytest.MonkeyPatch, ragged_prompts: list[list[int]]
) -> None:
    model = make_model("llama-tied-biased")
    joined = TorchGenerator(model, 0).generate(ragged_prompts, PARAMS, torch.Generator().manual_seed(0))
    monkeypatch.setattr("refrl.generation.lean_weights.JOIN_LIMIT_BYTES", 0)
    apart = TorchGenerator(model, 0).generate(ragged_prompts, PARAMS, torch.Generator().manual_seed(0))
    assert [row.ids for row in apart] == [row.ids for row in joined]
    assert largest_gap(model, apart) < 1e-5


def test_generation_leaves_weights_and_gradients_alone() -> None:
    model = make_model("qwen3")
    before = copy.deepcopy(model.state_dict())
    TorchGenerator(model, 0).generate([[7, 8]], PARAMS, torch.Generator().manual_seed(0))
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
