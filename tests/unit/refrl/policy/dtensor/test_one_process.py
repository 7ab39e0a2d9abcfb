"""The dtensor backend in one process is the model's own code: same scores, gradients, updates, state and export."""

from pathlib import Path
from typing import Any

import pytest
import torch

from refrl.algorithms.batching import Batch
from refrl.config import ConfigError, LossConfig, PolicyConfig, validate_config
from refrl.models.loading import load_model
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.models.tokenization import make_byte_tokenizer
from refrl.policy.base import Policy
from refrl.training.build import build_loss, build_policy


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of twelve experts in two layers."""
    directory = tmp_path_factory.mktemp("experts") / "model"
    make_model(TinyModelSpec(family="qwen3_moe", hidden_size=32, initializer_range=0.2), directory)
    return directory


LOSS = build_loss(validate_config(LossConfig, {}, source="test"))


def make(model: Path, *, enabled: bool, **changes: Any) -> Policy:
    """Return a policy of five rows a step, with a reference."""
    values = {
        "model_name": str(model),
        "train_global_batch_size": 5,
        "train_micro_batch_size": 2,
        "max_total_sequence_length": 32,
        "generation": {"temperature": 0.8},
        "max_grad_norm": 0.05,
        "dtensor_cfg": {"enabled": enabled},
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


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation_checkpointing": True},
        {"sequence_packing": {"enabled": True}},
        {"dynamic_batching": {"enabled": True}},
    ],
    ids=str,
)
def test_it_trains_as_the_plain_model_does(tiny_model: Path, batch: Batch, changes: dict[str, Any]) -> None:
    """Weights after two steps, and what is logged, agree to the rounding of another order of sums."""
    plain, spread = (make(tiny_model, enabled=enabled, **changes) for enabled in (False, True))
    for _ in range(2):
        logged, same = trained(plain, batch), trained(spread, batch)
        assert logged == pytest.approx(same, rel=1e-5, abs=1e-7)
    weights = dict(plain.named_weights())
    for name, weight in spread.named_weights():
        torch.testing.assert_close(weight, weights[name].detach(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("changes", [{}, {"activation_checkpointing": True}], ids=str)
def test_routers_are_balanced_as_in_the_plain_model(
    experts: Path, batch: Batch, changes: dict[str, Any]
) -> None:
    """Its loss is part of what trains them, and the load of each expert is counted alike."""
    plain, spread = (
        make(experts, enabled=enabled, router_aux_loss_coef=1.0, **changes) for enabled in (False, True)
    )
    for _ in range(2):
        logged, same = trained(plain, batch), trained(spread, batch)
        assert logged == pytest.approx(same, rel=1e-5, abs=1e-7)
        assert logged["moe/router_aux_loss"] > 1
        assert logged["moe/tokens_per_expert/11"] >= 1
    weights = dict(plain.named_weights())
    for name, weight in spread.named_weights():
        torch.testing.assert_close(weight, weights[name].detach(), rtol=1e-5, atol=1e-6)


def test_it_says_what_serves_it(tiny_model: Path) -> None:
    """From the objects that run: every weight is a DTensor, on a mesh of one."""
    backend = make(tiny_model, enabled=True).backend
    assert backend.name == "dtensor"
    assert backend.model.endswith("FSDPQwen3ForCausalLM")
    assert set(backend.mesh.values()) == {1}
    assert all(form.startswith("DTensor") for form in backend.weights)


def test_bfloat16_is_updated_in_float32(tiny_model: Path, batch: Batch) -> None:
    """Updates too small for bfloat16 add up in the weights, and the generator gets their rounding."""
    policy = make(tiny_model, enabled=True, precision="bfloat16", optimizer={"lr": 1e-5})
    before = {name: weight.clone() for name, weight in policy.trained_weights().items()}
    trained(policy, batch)
    after = policy.trained_weights()
    assert all(weight.dtype == torch.float32 for weight in after.values())
    assert all(not torch.equal(after[name], before[name]) for name in after)
    served = dict(policy.named_weights())
    assert all(torch.equal(served[name], weight.bfloat16()) for name, weight in after.items())


def test_what_is_exported_is_what_was_trained(tiny_model: Path, batch: Batch, tmp_path: Path) -> None:
    """The directory loads as a Hugging Face model with the policy's weights, bit for bit."""
    policy = make(tiny_model, enabled=True)
    trained(policy, batch)
    policy.save(tmp_path / "out")
    exported = dict(load_model(tmp_path / "out").named_parameters())
    assert all(torch.equal(exported[name], weight) for name, weight in policy.trained_weights().items())


def test_an_option_that_is_not_built_is_refused(tiny_model: Path) -> None:
    """Logits in chunks are refused by name, and not left out."""
    with pytest.raises(ConfigError, match=r"policy\.logprob_chunk_size is not built for policy\.dtensor_cfg"):
        make(tiny_model, enabled=True, logprob_chunk_size=8)


def test_experts_of_a_dense_model_are_refused(tiny_model: Path) -> None:
    """The message names the option and what the processes allow."""
    with pytest.raises(ConfigError, match="expert_parallel_size=2 does not divide the 1 processes"):
        make(tiny_model, enabled=True, dtensor_cfg={"enabled": True, "expert_parallel_size": 2})
