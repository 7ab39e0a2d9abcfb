"""The dtensor backend in one process is the model's own code: same scores, gradients, updates, state and export."""

from pathlib import Path
from typing import Any

import pytest
import torch

from refrl.algorithms.batching import Batch
from refrl.config import ConfigError, LossConfig, PolicyConfig, validate_config
from refrl.models.loading import load_model
from refrl.models.tiny import FRAMES, IMAGE_SIZE, MEDIA_TOKEN_ID, MEL_BINS, Family, TinyModelSpec, make_model
from refrl.models.tokenization import make_byte_tokenizer
from refrl.policy.base import Policy
from refrl.policy.draft import load_draft
from refrl.policy.tensors import whole
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


def test_a_draft_head_trains_as_beside_the_plain_model(batch: Batch, tmp_path: Path) -> None:
    """Its state goes on on the other backend, and its export is of the same bits as its weights."""
    model = tmp_path / "model"
    shape = TinyModelSpec(draft_head=True, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1)
    make_model(shape, model)
    options = {"draft": {"enabled": True}, "scheduler": {"name": "linear"}}
    plain, spread, other = (make(model, enabled=enabled, **options) for enabled in (False, True, False))
    logged, same = trained(plain, batch), trained(spread, batch)
    assert logged["draft/num_tokens"] == 18
    assert logged == pytest.approx(same, rel=1e-5, abs=1e-7)
    with torch.no_grad():
        state = spread.state_tensors()
        for name, tensor in other.state_tensors().items():
            tensor.copy_(whole(state[name]))
    other.load_state_facts(spread.state_facts())
    assert trained(plain, batch) == pytest.approx(trained(other, batch), rel=1e-5, abs=1e-7)
    for name, tensor in plain.state_tensors().items():
        torch.testing.assert_close(other.state_tensors()[name], tensor, rtol=1e-5, atol=1e-6)
    spread.save(tmp_path / "out")
    exported = load_draft(tmp_path / "out" / "draft").state_dict()
    assert exported
    assert all(torch.equal(spread.state_tensors()[f"draft.{name}"], one) for name, one in exported.items())


@pytest.mark.parametrize(
    ("family", "shape"), [("llava", (3, IMAGE_SIZE, IMAGE_SIZE)), ("qwen2_audio", (MEL_BINS, FRAMES))]
)
def test_a_model_that_sees_or_hears_trains_as_the_plain_one(
    batch: Batch, tmp_path: Path, family: Family, shape: tuple[int, ...]
) -> None:
    """The tower too, by the image or sound of each row."""
    make_model(TinyModelSpec(family=family, hidden_size=32, num_layers=1), tmp_path / "model")
    places = torch.full((batch.num_rows, 4), MEDIA_TOKEN_ID)
    batch.input_ids_BS = torch.cat([places, batch.input_ids_BS], 1)
    batch.attention_mask_BS = torch.cat([torch.ones_like(places), batch.attention_mask_BS], 1)
    batch.prompt_lens_B = batch.prompt_lens_B + 4
    batch.media_BX = torch.rand((batch.num_rows, *shape), generator=torch.Generator().manual_seed(1))
    plain, spread = (
        make(tmp_path / "model", enabled=enabled, optimizer={"eps": 1e-4}) for enabled in (False, True)
    )
    before = {name: weight.clone() for name, weight in spread.trained_weights().items()}
    for _ in range(2):
        assert trained(plain, batch) == pytest.approx(trained(spread, batch), rel=1e-5, abs=1e-7)
    after = spread.trained_weights()
    assert any("_tower." in name and not torch.equal(after[name], one) for name, one in before.items())
    for name, weight in plain.trained_weights().items():
        torch.testing.assert_close(after[name], weight.detach(), rtol=1e-5, atol=1e-6)


def test_layers_of_a_model_that_sees_are_not_shared(tmp_path: Path) -> None:
    """One message names both sizes."""
    make_model(TinyModelSpec(family="llava", hidden_size=32, num_layers=1), tmp_path / "model")
    with pytest.raises(
        ConfigError, match=r"LlavaFor.* takes images or sounds; tensor_parallel_size=2 and context_par"
    ):
        make(tmp_path / "model", enabled=True, dtensor_cfg={"enabled": True, "tensor_parallel_size": 2})


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
    with pytest.raises(
        ConfigError, match=r"policy\.logprob_chunk_size is not implemented for policy\.dtensor_cfg"
    ):
        make(tiny_model, enabled=True, logprob_chunk_size=8)


def test_experts_of_a_dense_model_are_refused(tiny_model: Path) -> None:
    """The message names the option and what the processes allow."""
    with pytest.raises(ConfigError, match="expert_parallel_size=2 does not divide the 1 processes"):
        make(tiny_model, enabled=True, dtensor_cfg={"enabled": True, "expert_parallel_size": 2})
