"""The Megatron-core policy computes what the Hugging Face model computes: scores, gradients, steps, state."""

from typing import Any

import pytest
import torch
from tests.unit.refrl.policy.megatron.conftest import CONFIGS, MakePolicy
from tests.unit.refrl.policy.megatron.rows import shared, worst

from refrl.algorithms.batching import Batch
from refrl.config import LossConfig, PolicyConfig, validate_config
from refrl.config.loading import ConfigError
from refrl.policy.base import Policy, Update
from refrl.training.build import build_loss

FAMILIES = list(CONFIGS)
TOLERANCE = 1e-5
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"sequence_packing": {"enabled": True}}),
    ("qwen3_moe", {"sequence_packing": {"enabled": True}}),
    ("qwen3_moe", {"activation_checkpointing": True}),
    ("qwen3_moe", {"dynamic_batching": {"enabled": True, "train_mb_tokens": 40}}),
]


def loss() -> Any:
    return build_loss(LossConfig(reference_policy_kl_penalty=0.0))


def pair(make: MakePolicy, family: str, **changes: Any) -> tuple[Policy, Policy]:
    return make(family, "megatron", **changes), make(family, "hf", **changes)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_the_hugging_face_model(
    make_policy: MakePolicy, batch: Batch, family: str
) -> None:
    mine, theirs = pair(make_policy, family, with_reference=True)
    assert torch.allclose(mine.logprobs(batch), theirs.logprobs(batch), rtol=TOLERANCE, atol=0)
    reference = mine.reference_logprobs(batch)
    assert reference is not None
    assert torch.allclose(reference, theirs.logprobs(batch), rtol=TOLERANCE, atol=0)


@pytest.mark.parametrize(("family", "form"), [*((family, {}) for family in FAMILIES), *FORMS])
def test_raw_gradients_are_those_of_the_hugging_face_model(
    make_policy: MakePolicy, batch: Batch, family: str, form: dict[str, Any]
) -> None:
    mine, theirs = pair(make_policy, family, **form)
    batch.old_logprobs_BT = theirs.logprobs(batch)
    metrics, expected = mine.gradients(batch, loss()), theirs.gradients(batch, loss())
    assert worst(mine.named_gradients(), theirs.named_gradients()) <= TOLERANCE
    assert metrics == pytest.approx(shared(expected), rel=1e-4, abs=1e-6)


def test_given_micro_batches_add_up_to_the_same_gradient(make_policy: MakePolicy, batch: Batch) -> None:
    policy = make_policy("qwen3", "megatron")
    batch.old_logprobs_BT = policy.logprobs(batch)
    policy.gradients(batch, loss(), [[0, 1, 2, 3, 4, 5]])
    whole = policy.named_gradients()
    policy.free_gradients()
    policy.gradients(batch, loss(), [[5], [0, 3], [4, 2, 1]])
    assert worst(policy.named_gradients(), whole) <= TOLERANCE


@pytest.mark.parametrize("again", [False, True])
def test_layers_are_computed_again_where_that_is_asked_for_and_only_in_training(
    make_policy: MakePolicy, batch: Batch, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy("llama", "megatron", activation_checkpointing=again)
    from megatron.core.transformer.transformer_layer import TransformerLayer

    forward, calls = TransformerLayer.forward, []
    monkeypatch.setattr(
        TransformerLayer, "forward", lambda *args, **more: (calls.append(1), forward(*args, **more))[1]
    )
    batch.old_logprobs_BT = policy.logprobs(batch)
    assert len(calls) == 2 * 11
    policy.gradients(batch, loss())
    assert len(calls) == 2 * 11 + (6 if again else 3) * 11
    assert not policy.in_training_mode


@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe"])
def test_three_updates_end_with_the_weights_and_the_state_of_the_hugging_face_backend(
    make_policy: MakePolicy, batch: Batch, family: str
) -> None:
    mine, theirs = pair(make_policy, family)
    for _ in range(3):
        trained, expected = mine.train(batch, loss()), theirs.train(batch, loss())
        assert trained == pytest.approx(shared(expected), rel=1e-4, abs=1e-6)
    assert mine.version == theirs.version == 3
    assert worst(dict(mine.named_weights()), dict(theirs.named_weights())) <= TOLERANCE
    assert worst(dict(mine.state_tensors()), dict(theirs.state_tensors())) <= TOLERANCE
    assert not mine.in_training_mode


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("saved_by", "resumed_by"), [("megatron", "megatron"), ("hf", "megatron"), ("megatron", "hf")]
)
def test_two_steps_are_one_and_one_after_a_resume_on_this_backend_and_across(
    make_policy: MakePolicy, batch: Batch, saved_by: str, resumed_by: str, precision: str
) -> None:
    batch.old_logprobs_BT = batch.sampling_logprobs_BT
    # Transformers multiplies by all experts at once, which takes aligned shapes alone in bfloat16.
    family = "qwen3_moe" if precision == "float32" else "qwen3"
    whole, first, second = (
        make_policy(family, backend, precision=precision) for backend in (resumed_by, saved_by, resumed_by)
    )
    whole.train(batch, loss())
    whole.train(batch, loss())
    first.train(batch, loss())
    saved = {name: tensor.clone() for name, tensor in first.state_tensors().items()}
    targets = second.state_tensors()
    assert targets.keys() == saved.keys()
    for name, tensor in targets.items():
        tensor.copy_(saved[name])
    second.load_state_facts(first.state_facts())
    assert second.version == 1
    second.train(batch, loss())
    ended, expected = dict(second.state_tensors()), dict(whole.state_tensors())
    if saved_by == resumed_by:
        assert all(torch.equal(ended[name], expected[name]) for name in expected)
    elif precision == "float32":
        assert worst(ended, expected) <= TOLERANCE


def test_an_update_is_shown_whole_under_hugging_face_names(make_policy: MakePolicy, batch: Batch) -> None:
    mine, theirs = pair(make_policy, "qwen3")
    shown: list[Update] = []
    seen: list[Update] = []
    mine.train(batch, loss(), shown.append)
    theirs.train(batch, loss(), seen.append)
    assert shown[0].micro_batches == seen[0].micro_batches == [[0, 1], [2, 3], [4, 5]]
    assert worst(dict(shown[0].gradients), dict(seen[0].gradients)) <= TOLERANCE
    assert worst(dict(shown[0].weights), dict(seen[0].weights)) <= TOLERANCE


def test_a_gradient_that_is_not_finite_changes_nothing(make_policy: MakePolicy, batch: Batch) -> None:
    policy = make_policy("llama", "megatron")
    before = dict(policy.named_weights())
    batch.old_logprobs_BT = policy.logprobs(batch)
    assert batch.advantages_B is not None
    batch.advantages_B[0] = torch.nan
    trained = policy.train(batch, loss())
    assert not torch.isfinite(torch.tensor(trained["grad_norm"]))
    assert policy.version == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.named_weights())


def test_the_gradient_is_scaled_down_to_the_largest_norm(make_policy: MakePolicy, batch: Batch) -> None:
    free, clipped = (make_policy("llama", "megatron", max_grad_norm=limit) for limit in (None, 0.01))
    for policy in (free, clipped):
        policy.gradients(batch_with_old(policy, batch), loss())
    gradients = free.named_gradients()
    norm = float(torch.stack([gradient.norm() for gradient in gradients.values()]).norm())
    assert free.step()[0] == pytest.approx(norm, rel=1e-5)
    assert clipped.step()[0] == pytest.approx(norm, rel=1e-5)
    moments = {name: tensor for name, tensor in clipped.state_tensors().items() if name.endswith(".exp_avg")}
    applied = float(torch.stack([moment.norm() for moment in moments.values()]).norm()) / 0.1
    assert applied == pytest.approx(0.01, rel=1e-3)


def batch_with_old(policy: Policy, batch: Batch) -> Batch:
    batch.old_logprobs_BT = policy.logprobs(batch)
    return batch


def test_it_says_what_serves_it(make_policy: MakePolicy) -> None:
    backend = make_policy("qwen3", "megatron").backend
    assert backend.name == "megatron"
    assert backend.model == "megatron.core.models.gpt.gpt_model.GPTModel"
    assert backend.mesh == {"data": 1, "tensor": 1, "pipeline": 1, "context": 1, "expert": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"megatron_cfg": {"enabled": True}, "dtensor_cfg": {"enabled": True}}, "exclude each other"),
        (
            {"megatron_cfg": {"tensor_model_parallel_size": 2}},
            "no effect without policy.megatron_cfg.enabled=true",
        ),
        (
            {"megatron_cfg": {"enabled": True, "sequence_parallel": True}},
            "tensor_model_parallel_size to 2 or more",
        ),
        (
            {"megatron_cfg": {"enabled": True}, "logprob_chunk_size": 8},
            "policy.logprob_chunk_size is not implemented",
        ),
        (
            {
                "megatron_cfg": {
                    "enabled": True,
                    "tensor_model_parallel_size": 2,
                    "expert_tensor_parallel_size": 1,
                }
            },
            "leaves the experts' gradients unsummed",
        ),
        ({"megatron_cfg": {"enabled": True, "num_gpus": 2}}, "unknown key 'megatron_cfg.num_gpus'"),
    ],
)
def test_what_is_not_served_is_refused_and_never_replaced(changes: dict[str, Any], message: str) -> None:
    values = {
        "model_name": "m",
        "train_global_batch_size": 2,
        "train_micro_batch_size": 1,
        "max_total_sequence_length": 8,
        **changes,
    }
    with pytest.raises(ConfigError, match=message):
        validate_config(PolicyConfig, values, source="test")


def test_sizes_that_the_model_does_not_divide_into_are_refused(make_policy: MakePolicy) -> None:
    with pytest.raises(ConfigError, match=r"pipeline_model_parallel_size=2 does not divide the 11 layers"):
        make_policy("llama", "megatron", megatron_cfg={"enabled": True, "pipeline_model_parallel_size": 2})


def test_sizes_that_the_processes_do_not_divide_into_are_refused(make_policy: MakePolicy) -> None:
    with pytest.raises(ConfigError, match=r"make 2 processes of one model, which do not divide"):
        make_policy("qwen3", "megatron", megatron_cfg={"enabled": True, "tensor_model_parallel_size": 2})
