"""Every weight of a Hugging Face model has one place in Megatron-core, and comes back as it was."""

import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.unit.refrl.policy.megatron.conftest import CONFIGS, SHAPE, MakePolicy
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from refrl.config import ConfigError
from refrl.policy.megatron.architecture import Architecture, architecture_of, read_architecture
from refrl.policy.megatron.checkpoint_files import TensorFiles, write_tensors
from refrl.policy.megatron.conversion import ConversionError, Link, check_names, links

WEIGHTS = "model.safetensors"
FAMILIES = list(CONFIGS)


def linked(
    architecture: Architecture, tensors: dict[str, torch.Tensor], size: int
) -> dict[str, torch.Tensor]:
    """Take tensors to `size` tensor-parallel ranks and back."""
    back = {}
    for link in links(architecture):
        shares = []
        for rank in range(size):
            parts = [link.part(tensors[name], rank, size) for name in link.tensors]
            shares.append(link.divide(link.merge(parts)))
        for number, name in enumerate(link.tensors):
            back[name] = link.whole([share[number] for share in shares], number)
    return back


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_comes_back_bit_by_bit(models: dict[str, Path], family: str, size: int) -> None:
    tensors = load_file(models[family] / WEIGHTS)
    back = linked(read_architecture(models[family]), tensors, size)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_policy_has_the_files_of_the_model_it_came_from(
    models: dict[str, Path], make_policy: MakePolicy, tmp_path: Path, family: str
) -> None:
    make_policy(family, "megatron").save(tmp_path / "out")
    tensors, back = load_file(models[family] / WEIGHTS), load_file(tmp_path / "out" / WEIGHTS)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    ids = torch.arange(12).reshape(2, 6)
    first, second = (
        AutoModelForCausalLM.from_pretrained(path) for path in (models[family], tmp_path / "out")
    )
    assert torch.equal(first(ids).logits, second(ids).logits)


def test_queries_of_a_key_head_stand_before_its_key_and_its_value() -> None:
    """By hand: two key heads of one row each, with two query heads each."""
    link = Link("p", ("q", "k", "v"), ((4, 1), (2, 1), (2, 1)), form="grouped", split=0, head_dim=1)
    query, key, value = (
        torch.tensor([[0.0], [1], [2], [3]]),
        torch.tensor([[10.0], [11]]),
        torch.tensor([[20.0], [21]]),
    )
    assert link.merge([query, key, value]).flatten().tolist() == [0, 1, 10, 20, 2, 3, 11, 21]


def test_each_rank_has_its_half_of_the_gate_and_its_half_of_the_up_projection() -> None:
    link = Link("p", ("gate", "up"), ((4, 1), (4, 1)), form="joined", split=0)
    gate, up = torch.arange(4.0)[:, None], torch.arange(10.0, 14)[:, None]
    second = link.merge([link.part(gate, 1, 2), link.part(up, 1, 2)])
    assert second.flatten().tolist() == [2, 3, 12, 13]


def test_no_parameter_is_linked_twice_and_layers_and_experts_are_counted_over_ten(
    models: dict[str, Path],
) -> None:
    names = [link.parameter for link in links(read_architecture(models["qwen3_moe"]))]
    assert len(names) == len(set(names))
    assert "decoder.layers.10.mlp.experts.local_experts.11.linear_fc2.weight" in names
    assert "decoder.layers.1.mlp.linear_fc1.weight" in names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: tensors.pop("model.layers.10.mlp.up_proj.weight"),
            "missing: model.layers.10.mlp.up_proj.weight",
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.mlp.extra": torch.ones(1)}),
            "without a place: model.layers.0.mlp.extra",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(31)}),
            r"model.norm.weight has shape \(31,\), and config.json says \(32,\)",
        ),
    ],
)
def test_a_name_or_shape_on_one_side_alone_is_an_error_that_names_it(
    models: dict[str, Path], make_policy: MakePolicy, tmp_path: Path, change: object, message: str
) -> None:
    shutil.copytree(models["llama"], tmp_path / "model")
    tensors = load_file(tmp_path / "model" / WEIGHTS)
    change(tensors)  # type: ignore[operator]
    save_file(tensors, tmp_path / "model" / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=message):
        make_policy("llama", "megatron", model_name=str(tmp_path / "model"))


def test_a_parameter_of_megatron_core_without_a_place_is_an_error_that_names_it(
    make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from refrl.policy.megatron import model

    def without_key_norms(architecture: Architecture) -> list[Link]:
        return [link for link in links(architecture) if "k_layernorm" not in link.parameter]

    monkeypatch.setattr(model, "links", without_key_norms)
    with pytest.raises(
        ConfigError, match=r"without a place: decoder.layers.0.self_attention.k_layernorm.weight"
    ):
        make_policy("qwen3", "megatron")


def test_a_head_that_differs_from_the_embedding_it_is_tied_to_is_refused(
    models: dict[str, Path], make_policy: MakePolicy, tmp_path: Path
) -> None:
    shutil.copytree(models["qwen2"], tmp_path / "model")
    tensors = load_file(tmp_path / "model" / WEIGHTS)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model" / WEIGHTS, metadata={"format": "pt"})
    make_policy("qwen2", "megatron", model_name=str(tmp_path / "model"))
    tensors["lm_head.weight"] += 1
    save_file(tensors, tmp_path / "model" / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
        make_policy("qwen2", "megatron", model_name=str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LlamaConfig(**SHAPE, num_hidden_layers=1, attention_bias=True), "attention_bias=true"),
        (LlamaConfig(**SHAPE, num_hidden_layers=1, hidden_act="gelu"), "hidden_act=gelu"),
        (
            LlamaConfig(
                **SHAPE,
                num_hidden_layers=1,
                rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0},
            ),
            "rope_type=yarn",
        ),
        (
            Qwen3Config(
                **SHAPE, num_hidden_layers=1, use_sliding_window=True, sliding_window=8, max_window_layers=0
            ),
            "sliding window of 8 tokens",
        ),
    ],
)
def test_what_megatron_core_does_not_have_is_refused_by_name(config: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        architecture_of(config)  # type: ignore[arg-type]


def test_the_vocabulary_is_padded_with_zeros_for_ranks_that_do_not_divide_it() -> None:
    link = Link("p", ("e",), ((3, 1),), split=0, padded=True)
    parts = [link.part(torch.ones(3, 1), rank, 2) for rank in range(2)]
    assert [part.flatten().tolist() for part in parts] == [[1, 1], [1, 0]]
    assert torch.equal(link.whole(parts, 0), torch.ones(3, 1))


def test_large_models_are_written_over_several_files_with_an_index(tmp_path: Path) -> None:
    tensors = {f"t{number}": torch.full((4,), float(number)) for number in range(5)}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    write_tensors(tensors.items(), shapes, tmp_path, shard_bytes=32)
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == [
        f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)
    ]
    with ExitStack() as stack:
        files = TensorFiles(tmp_path, stack)
        assert files.names() == tensors.keys()
        assert all(torch.equal(files.read(name), tensor) for name, tensor in tensors.items())


def test_names_are_held_in_both_directions() -> None:
    check_names(["a"], ["a"], what="these")
    with pytest.raises(ConversionError, match="these: 1 without a place: b"):
        check_names(["a", "b"], ["a"], what="these")
    with pytest.raises(ConversionError, match="these: 1 missing: b"):
        check_names(["a"], ["a", "b"], what="these")


def test_a_link_without_its_parameter_is_seen_too(models: dict[str, Path]) -> None:
    architecture = replace(read_architecture(models["qwen3"]), qk_norm=False)
    known = {name for link in links(architecture) for name in link.tensors}
    given = load_file(models["qwen3"] / WEIGHTS).keys()
    with pytest.raises(ConversionError, match=r"4 without a place: model.layers.0.self_attn.k_norm.weight"):
        check_names(given, known, what="these")
