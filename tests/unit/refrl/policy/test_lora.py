"""Adapters: what they compute, what is frozen under them, and PEFT's files in and out."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from refrl.algorithms.batching import Batch
from refrl.config import ConfigError
from refrl.models.loading import load_model
from refrl.policy.hf import HFPolicy

MakePolicy = Callable[..., HFPolicy]
ON = {"enabled": True, "dim": 3, "alpha": 6.0}


def perturb(policy: HFPolicy) -> None:
    """Give every adapter random values, and bring the merged weights up to date as an update does."""
    stream = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in policy.trained_weights().values():
            weight.normal_(std=0.1, generator=stream)
    policy.load_state_facts(policy.state_facts())


def test_new_adapters_change_nothing_and_alone_are_trained(make_policy: MakePolicy, batch: Batch) -> None:
    """B starts at zero; the head has no adapter."""
    plain, adapted = make_policy(), make_policy(lora_cfg=ON)
    assert torch.equal(plain.logprobs(batch), adapted.logprobs(batch))
    names = set(adapted.trained_weights())
    assert names == set(adapted.named_gradients())
    assert all(".lora_A.weight" in name or ".lora_B.weight" in name for name in names)
    assert not any("lm_head" in name for name in names)
    assert {name for name, _ in adapted.named_weights()} == {name for name, _ in plain.named_weights()}


def test_merged_unmerged_and_exported_forms_score_alike(
    make_policy: MakePolicy, batch: Batch, tmp_path: Path
) -> None:
    """And the reference stays the frozen model."""
    plain, adapted = make_policy(), make_policy(lora_cfg=ON, with_reference=True)
    perturb(adapted)
    scored = adapted.logprobs(batch)
    assert (scored - plain.logprobs(batch)).abs().max() > 0.01
    reference = adapted.reference_logprobs(batch)
    assert reference is not None
    assert torch.equal(reference, plain.logprobs(batch))
    adapted.save(tmp_path / "final")
    merged = make_policy(model_name=str(tmp_path / "final"))
    assert (merged.logprobs(batch) - scored).abs().max() < 1e-5
    sent = dict(adapted.named_weights())
    exported = dict(load_model(tmp_path / "final").named_parameters())
    assert all(torch.equal(exported[name], sent[name]) for name in exported)
    again = make_policy(lora_cfg={**ON, "adapter_path": str(tmp_path / "final" / "adapter")})
    assert torch.equal(again.logprobs(batch), scored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"r": 4}, r"r=4, and this run needs 3"),
        ({"lora_alpha": 32}, "lora_alpha=32"),
        ({"use_dora": True}, "use_dora=True.*no plain LoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ],
)
def test_an_adapter_that_would_be_another_is_refused(
    make_policy: MakePolicy, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """By the name of its option."""
    make_policy(lora_cfg=ON).save(tmp_path / "final")
    file = tmp_path / "final" / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ConfigError, match=message):
        make_policy(lora_cfg={**ON, "adapter_path": str(file.parent)})


def test_an_adapter_that_lacks_a_tensor_is_refused(make_policy: MakePolicy, tmp_path: Path) -> None:
    """It would be random."""
    make_policy(lora_cfg=ON).save(tmp_path / "final")
    file = tmp_path / "final" / "adapter" / "adapter_model.safetensors"
    save_file(dict(list(load_file(file).items())[1:]), file)
    with pytest.raises(ConfigError, match="is missing 1 tensors"):
        make_policy(lora_cfg={**ON, "adapter_path": str(file.parent)})


def test_a_target_that_is_not_there_is_named(make_policy: MakePolicy) -> None:
    """With those that are."""
    with pytest.raises(ConfigError, match=r"is called w_pack; there are .*q_proj"):
        make_policy(lora_cfg={**ON, "target_modules": ["w_pack"]})
