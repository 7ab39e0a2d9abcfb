"""A generator's own copy is the policy when generation is prepared, and changes at no other time."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.policy.hf import HFPolicy
from refrl.weight_sync import WeightSync

from .conftest import MakePolicy
from .test_hf_policy import mean_logprob_loss

APART = {"generation": {"colocated": {"enabled": False}}, "optimizer": {"lr": 1e-2}}


def pairs(policy: HFPolicy) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every tensor of the policy with the generator's."""
    own = policy.generation_model.state_dict()
    for name, tensor in policy.model.state_dict().items():
        yield tensor, own[name]


def test_colocated_is_the_live_model(make_policy: MakePolicy) -> None:
    """Nothing is copied."""
    policy = make_policy()
    assert policy.generation_model is policy.model


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_copy_follows_when_generation_is_prepared(
    make_policy: MakePolicy, batch: Batch, precision: str
) -> None:
    """Every tensor; before that, none of them moves."""
    policy = make_policy(precision=precision, **APART)
    policy.prepare_for_generation()
    policy.train(batch, mean_logprob_loss)
    assert not any(torch.equal(live, own) for live, own in pairs(policy))
    policy.prepare_for_generation()
    assert all(torch.equal(live, own) for live, own in pairs(policy))
    assert not any(live.data_ptr() == own.data_ptr() for live, own in pairs(policy))
    assert not any(weight.requires_grad for weight in policy.generation_model.parameters())


def test_a_version_is_copied_once(make_policy: MakePolicy) -> None:
    """A validation right after a sync moves no weights again."""
    model = make_policy().model
    sync = WeightSync(model)
    weight, own = next(model.parameters()), next(sync.replica.parameters())
    with torch.no_grad():
        weight.add_(1.0)
    sync.sync(0)
    assert not torch.equal(weight, own)
    sync.sync(1)
    assert torch.equal(weight, own)


def test_models_that_differ_in_their_tensors_are_not_synced(make_policy: MakePolicy) -> None:
    """What has no counterpart would stay old in silence."""
    model = make_policy().model
    sync = WeightSync(model)
    model.register_buffer("late", torch.zeros(1))
    with pytest.raises(ValueError, match=r"only one of the models has \['late'\]"):
        sync.sync(1)
