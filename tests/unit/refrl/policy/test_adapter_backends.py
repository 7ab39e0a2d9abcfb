"""Adapters on a spread model are those of the plain backend: training, files, checkpoints, what is sent."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from refrl.algorithms.batching import Batch
from refrl.config import ConfigError, LossConfig, PolicyConfig, validate_config
from refrl.models.loading import load_model
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.models.tokenization import make_byte_tokenizer
from refrl.policy.base import Policy
from refrl.training.build import build_loss, build_policy

Make = Callable[..., Policy]
NO_MEGATRON = find_spec("megatron") is None or torch.cuda.is_available()
MEGATRON = pytest.mark.skipif(NO_MEGATRON, reason="Megatron-core is not installed, or takes the CUDA device")
SPREAD = pytest.mark.parametrize("backend", ["dtensor", pytest.param("megatron", marks=MEGATRON)])
LOSS = build_loss(validate_config(LossConfig, {}, source="test"))
ON: dict[str, Any] = {"enabled": True, "dim": 3, "alpha": 6.0}


def make(model: Path, backend: str, **changes: Any) -> Policy:
    """Return a policy with adapters and a reference."""
    values = {
        "model_name": str(model),
        "train_global_batch_size": 5,
        "train_micro_batch_size": 2,
        "max_total_sequence_length": 32,
        "max_grad_norm": 0.05,
        # A larger epsilon than usual: Adam divides gradients that are rounding alone to the size of the others.
        "optimizer": {"lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1},
        "lora_cfg": ON,
        **({} if backend == "hf" else {f"{backend}_cfg": {"enabled": True}}),
        **changes,
    }
    return build_policy(
        validate_config(PolicyConfig, values, source="test"),
        make_byte_tokenizer(),
        device=torch.device("cpu"),
        num_updates=10,
        with_reference=True,
    )


def trained(policy: Policy, batch: Batch) -> dict[str, float]:
    """Score with policy and reference, and take a step."""
    batch.old_logprobs_BT = policy.logprobs(batch)
    batch.ref_logprobs_BT = policy.reference_logprobs(batch)
    return policy.train(batch, LOSS)


def close(found: dict[str, torch.Tensor], right: dict[str, torch.Tensor], rtol: float = 1e-5) -> None:
    """Hold tensors by name against others."""
    assert found.keys() == right.keys()
    for name, tensor in right.items():
        torch.testing.assert_close(
            found[name].float(), tensor.detach().float(), rtol=rtol, atol=1e-6, msg=name
        )


def whole(policy: Policy) -> dict[str, torch.Tensor]:
    """Return copies of what a checkpoint holds."""
    from refrl.policy.tensors import whole

    return {name: whole(tensor).clone() for name, tensor in policy.state_tensors().items()}


@pytest.fixture(scope="module")
def adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an adapter of the tiny model in PEFT's format, written by the plain backend; both halves are random."""
    policy = make(tiny_model, "hf")
    stream = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in policy.trained_weights().values():
            weight.normal_(std=0.1, generator=stream)
    policy.load_state_facts(policy.state_facts())
    directory = tmp_path_factory.mktemp("adapters") / "final"
    policy.save(directory)
    return directory / "adapter"


@SPREAD
def test_new_adapters_are_those_of_the_plain_backend(tiny_model: Path, batch: Batch, backend: str) -> None:
    """The same layers get one, A has the same first values, and nothing changes yet."""
    plain, spread = make(tiny_model, "hf"), make(tiny_model, backend)
    found = spread.trained_weights()
    assert found.keys() == plain.trained_weights().keys()
    assert all(torch.equal(found[name], weight) for name, weight in plain.trained_weights().items())
    reference = spread.reference_logprobs(batch)
    assert reference is not None
    assert torch.equal(spread.logprobs(batch), reference)


@SPREAD
@pytest.mark.parametrize("form", ["plain", "packed", "checkpointed", "two_targets"])
def test_it_trains_as_the_plain_backend_does(
    tiny_model: Path, adapter: Path, batch: Batch, backend: str, form: str
) -> None:
    """Raw gradients, what is logged, adapters, merged weights and state after two clipped updates."""
    changes: dict[str, Any] = {
        "plain": {"lora_cfg": {**ON, "adapter_path": str(adapter)}},
        "packed": {"sequence_packing": {"enabled": True}},
        "checkpointed": {"activation_checkpointing": True},
        "two_targets": {"lora_cfg": {**ON, "target_modules": ["v_proj", "down_proj"]}},
    }[form]
    plain, spread = (make(tiny_model, one, **changes) for one in ("hf", backend))
    batch.old_logprobs_BT, batch.ref_logprobs_BT = plain.logprobs(batch), plain.reference_logprobs(batch)
    gradients = []
    for policy in (plain, spread):
        policy.gradients(batch, LOSS)
        gradients.append(policy.named_gradients())
        policy.free_gradients()
    close(gradients[1], gradients[0])
    for _ in range(2):
        logged, same = trained(plain, batch), trained(spread, batch)
        assert logged == pytest.approx(same, rel=1e-4, abs=1e-6)
    close(dict(spread.trained_weights()), dict(plain.trained_weights()))
    close(dict(spread.named_weights()), dict(plain.named_weights()))
    close(whole(spread), whole(plain))


@SPREAD
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_adapters_move_and_nothing_else_does(
    tiny_model: Path, batch: Batch, backend: str, precision: str
) -> None:
    """Every A and B, and no bit of the model under them."""
    policy = make(tiny_model, backend, precision=precision)
    base = {
        name: weight.to(getattr(torch, precision))
        for name, weight in load_model(tiny_model).named_parameters()
    }
    first = {name: weight.clone() for name, weight in policy.trained_weights().items()}
    trained(policy, batch)
    trained(policy, batch)
    assert all(".lora_A." in name or ".lora_B." in name for name in first)
    assert [
        name for name, weight in policy.trained_weights().items() if torch.equal(weight, first[name])
    ] == []
    frozen = dict(policy.reference_weights() or ())
    assert all(torch.equal(frozen[name], weight) for name, weight in base.items())


@SPREAD
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_merged_unmerged_and_exported_forms_are_one_model(
    tiny_model: Path, adapter: Path, batch: Batch, backend: str, precision: str, tmp_path: Path
) -> None:
    """What is sent to a generator is what is exported; the plain backend takes both directories."""
    tolerance = {"float32": 1e-5, "bfloat16": 0.05}[precision]
    start = {**ON, "adapter_path": str(adapter)}
    policy = make(tiny_model, backend, precision=precision, lora_cfg=start)
    trained(policy, batch)
    scored = policy.logprobs(batch)
    reference = policy.reference_logprobs(batch)
    assert reference is not None
    assert (scored - reference).abs().max() > 0.01
    policy.save(tmp_path / "final")
    sent = dict(policy.named_weights())
    exported = load_file(tmp_path / "final" / "model.safetensors")
    assert all(torch.equal(exported[name], sent[name]) for name in exported)
    off: dict[str, Any] = {"lora_cfg": {}, "precision": precision}
    merged = make(tmp_path / "final", "hf", **off)
    assert (merged.logprobs(batch) - scored).abs().max() < tolerance
    written = str(tmp_path / "final" / "adapter")
    again = make(tiny_model, "hf", precision=precision, lora_cfg={**ON, "adapter_path": written})
    assert (again.logprobs(batch) - scored).abs().max() < tolerance
    assert {name for name, _ in again.named_weights()} == sent.keys()


@SPREAD
@pytest.mark.parametrize("other", ["hf", "itself"])
def test_a_checkpoint_holds_adapters_and_either_backend_goes_on_from_it(
    tiny_model: Path, batch: Batch, backend: str, other: str
) -> None:
    """Two steps are one and one; the digest of what is frozen does not depend on the backend."""
    unbroken = make(tiny_model, backend)
    trained(unbroken, batch)
    trained(unbroken, batch)
    for saving, going_on in {
        (backend, other.replace("itself", backend)),
        (other.replace("itself", backend), backend),
    }:
        first, second = make(tiny_model, saving), make(tiny_model, going_on)
        trained(first, batch)
        saved, targets = whole(first), second.state_tensors()
        assert all(".lora_" in name for name in saved)
        with torch.no_grad():
            for name, tensor in targets.items():
                _fill(tensor, saved[name])
        second.load_state_facts(first.state_facts())
        trained(second, batch)
        if other == "itself":
            assert all(torch.equal(tensor, whole(unbroken)[name]) for name, tensor in whole(second).items())
        close(whole(second), whole(unbroken))
        close(dict(second.named_weights()), dict(unbroken.named_weights()))


def _fill(target: torch.Tensor, value: torch.Tensor) -> None:
    from torch.distributed.tensor import DTensor

    (target.to_local() if isinstance(target, DTensor) else target).copy_(value)


@SPREAD
def test_a_checkpoint_of_another_model_under_the_adapters_is_refused(
    tiny_model: Path, backend: str, tmp_path: Path
) -> None:
    """By the digest of the frozen weights."""
    shape = TinyModelSpec(hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, seed=4)
    make_model(shape, tmp_path / "other")
    facts = make(tmp_path / "other", backend).state_facts()
    with pytest.raises(ConfigError, match="the frozen weights or the reference differ from those"):
        make(tiny_model, backend).load_state_facts(facts)


@SPREAD
def test_an_adapter_of_other_layers_is_refused(tiny_model: Path, adapter: Path, backend: str) -> None:
    """By the tensors that it has too many."""
    changes = {**ON, "adapter_path": str(adapter), "target_modules": ["q_proj"]}
    with pytest.raises(ConfigError, match=r"has \d+ unknown ones .*target_modules"):
        make(tiny_model, backend, lora_cfg=changes)


@MEGATRON
@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (
            {"target_modules": ["lm_head", "q_proj"]},
            "lm_head has no adapter on policy.megatron_cfg.*exclude_modules",
        ),
        ({"target_modules": ["w_pack"]}, r"is called w_pack; there are .*q_proj"),
    ],
)
def test_a_layer_that_has_no_adapter_there_is_refused(
    tiny_model: Path, lora: dict[str, Any], message: str
) -> None:
    """By its name, and not left out."""
    with pytest.raises(ConfigError, match=message):
        make(tiny_model, "megatron", lora_cfg={**ON, **lora})


@MEGATRON
def test_a_pipeline_stage_without_adapters_is_refused() -> None:
    """Of four layers over two stages, adapters in the first two leave the second stage nothing to train."""
    from refrl.policy.megatron.adapters import check_stages

    chosen = [f"decoder.layers.{layer}.self_attention.linear_proj.weight" for layer in (0, 1)]
    with pytest.raises(ConfigError, match=r"no layer of pipeline stage 1 \(layers 2 to 3\) gets an adapter"):
        check_stages(chosen, num_layers=4, num_stages=2)
    check_stages([*chosen, "decoder.layers.3.mlp.linear_fc2.weight"], num_layers=4, num_stages=2)


@MEGATRON
def test_hidden_states_behind_a_frozen_embedding_have_a_gradient(tiny_model: Path) -> None:
    """Or else layers that Megatron-core computes again on a GPU would train nothing; scoring alone keeps none."""
    policy: Any = make(tiny_model, "megatron")
    embedding = policy._local.module.embedding
    ids, positions = torch.zeros(1, 3, dtype=torch.long), torch.arange(3).unsqueeze(0)
    assert embedding(ids, positions).requires_grad
    with torch.no_grad():
        assert not embedding(ids, positions).requires_grad
