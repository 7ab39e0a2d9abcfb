"""The balance loss of the routers is that of each row, whichever micro-batch it stands in."""

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from refrl.algorithms.batching import Batch
from refrl.config import ConfigError
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.policy.routers import balance

from .conftest import MakePolicy
from .test_hf_policy import mean_logprob_loss

LAYERS, CHOSEN = 2, 3


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a model of twelve experts in two layers."""
    directory = tmp_path_factory.mktemp("experts") / "model"
    make_model(TinyModelSpec(family="qwen3_moe", hidden_size=32, initializer_range=0.2), directory)
    return str(directory)


def test_the_loss_is_that_of_transformers_row_by_row(
    make_policy: MakePolicy, batch: Batch, experts: str
) -> None:
    """Theirs, of one row and one layer, counts K where ours counts 1; padding takes no part in either."""
    metrics = make_policy(model_name=experts, router_aux_loss_coef=0.5).train(batch, mean_logprob_loss)
    model = AutoModelForCausalLM.from_pretrained(experts)
    theirs = []
    for ids_S, mask_S in zip(batch.input_ids_BS, batch.attention_mask_BS, strict=True):
        logits = model(ids_S[mask_S.bool()][None], output_router_logits=True).router_logits
        theirs += [load_balancing_loss_func((of,), 12, CHOSEN).item() / CHOSEN for of in logits]
    assert metrics["moe/router_aux_loss"] == pytest.approx(sum(theirs) / len(theirs), rel=1e-5)
    load = [metrics[f"moe/tokens_per_expert/{number}"] for number in range(12)]
    assert sum(load) == int(batch.attention_mask_BS.sum()) * LAYERS * CHOSEN
    assert metrics["moe/load_max_over_mean"] == pytest.approx(max(load) * 12 / sum(load))


@pytest.mark.parametrize("micro", [1, 2])
def test_the_gradient_does_not_depend_on_the_cut(
    make_policy: MakePolicy, batch: Batch, experts: str, micro: int
) -> None:
    """Nor on layers whose activations are computed again; and it is not that without the loss."""

    def gradients(**changes: object) -> dict[str, torch.Tensor]:
        policy = make_policy(**{"model_name": experts, "router_aux_loss_coef": 10.0, **changes})
        policy.gradients(batch, mean_logprob_loss)
        return policy.named_gradients()

    whole, without = gradients(), gradients(router_aux_loss_coef=0.0)
    for changes in ({}, {"activation_checkpointing": True}):
        cut = gradients(train_micro_batch_size=micro, **changes)
        for name, gradient in whole.items():
            torch.testing.assert_close(cut[name], gradient, rtol=1e-4, atol=1e-6)
    gates = [name for name in whole if name.endswith("gate.weight")]
    assert len(gates) == LAYERS
    assert all(float((whole[name] - without[name]).abs().max()) > 1e-4 for name in gates)


def test_what_stands_at_padding_reaches_neither_the_loss_nor_its_gradient() -> None:
    random = torch.Generator().manual_seed(3)
    logits_BSE = torch.randn(2, 5, 4, generator=random)
    chosen_BSK = logits_BSE.topk(2).indices
    mask_BS = torch.tensor([[1.0, 1, 1, 0, 0], [0, 1, 1, 1, 1]])
    found = []
    for at_padding in (0.0, torch.nan):
        leaf = logits_BSE.masked_fill(mask_BS[:, :, None] == 0, at_padding).requires_grad_()
        loss_B, load_E = balance(leaf, chosen_BSK, mask_BS)
        loss_B.sum().backward()
        assert leaf.grad is not None
        found.append((loss_B, load_E, leaf.grad))
    for here, there in zip(*found, strict=True):
        assert torch.equal(here, there)
        assert here.isfinite().all()


def test_a_model_without_experts_is_refused(make_policy: MakePolicy) -> None:
    """The option would have no effect."""
    with pytest.raises(ConfigError, match=r"policy\.router_aux_loss_coef=0\.1.*no routers"):
        make_policy(router_aux_loss_coef=0.1)


def test_megatron_refuses_the_loss(make_policy: MakePolicy, experts: str) -> None:
    """Its own would count padding, and divide by the tokens of a micro-batch."""
    with pytest.raises(
        ConfigError, match=r"policy\.router_aux_loss_coef is not implemented for policy\.megatron"
    ):
        make_policy(model_name=experts, router_aux_loss_coef=0.1, megatron_cfg={"enabled": True})


def test_packed_rows_are_refused(make_policy: MakePolicy, experts: str) -> None:
    """The loss is a mean over rows."""
    with pytest.raises(ConfigError, match="sequence_packing"):
        make_policy(model_name=experts, router_aux_loss_coef=0.1, sequence_packing={"enabled": True})
