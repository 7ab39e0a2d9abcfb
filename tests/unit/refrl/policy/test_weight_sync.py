"""A generator's own copy is the policy after a sync, and changes at no other time; shared weights are the policy's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.config import GenerationConfig, PolicyConfig, validate_config
from refrl.generation.base import Generator
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.models.tokenization import make_byte_tokenizer
from refrl.policy.base import Policy
from refrl.training.build_generation import build_generator, build_weight_sync
from refrl.weight_sync.base import WeightSyncError

from .conftest import MakePolicy
from .test_hf_policy import mean_logprob_loss

APART = GenerationConfig.model_validate({"colocated": {"enabled": False}})


def make_generator(model: Path, precision: str = "float32") -> Generator:
    """Return an engine with the weights of a directory."""
    values = {
        "model_name": str(model),
        "train_global_batch_size": 5,
        "train_micro_batch_size": 5,
        "max_total_sequence_length": 32,
        "precision": precision,
    }
    config = validate_config(PolicyConfig, values, source="test")
    return build_generator(config, make_byte_tokenizer(), device=torch.device("cpu"))


def pairs(policy: Policy, generator: Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield every parameter of the policy with the generator's."""
    own = dict(generator.named_weights())
    for name, tensor in policy.named_weights():
        if name in policy.named_gradients():
            yield tensor, own[name]


@pytest.mark.parametrize("tied", [False, True])
def test_colocated_weights_are_the_policys_own_storage(
    make_policy: MakePolicy, batch: Batch, tmp_path: Path, tied: bool
) -> None:
    """Nothing is copied: what an update writes is sampled with, also through a head that is the embedding."""
    directory = tmp_path / "model"
    make_model(
        TinyModelSpec(hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, tie_word_embeddings=tied),
        directory,
    )
    policy = make_policy(model_name=str(directory), optimizer={"lr": 1e-2})
    generator = make_generator(directory)
    sync = build_weight_sync(GenerationConfig(), policy, generator)
    assert all(live.data_ptr() == own.data_ptr() for live, own in pairs(policy, generator))
    policy.train(batch, mean_logprob_loss)
    sync.sync()
    assert all(torch.equal(live, own) for live, own in pairs(policy, generator))
    assert generator.weight_version == policy.version == 1
    assert not any(weight.requires_grad for _, weight in generator.named_weights())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_copy_follows_at_a_sync(
    make_policy: MakePolicy, tiny_model: Path, batch: Batch, precision: str
) -> None:
    """Every tensor; before that, none of them moves."""
    policy = make_policy(precision=precision, optimizer={"lr": 1e-2})
    generator = make_generator(tiny_model, precision)
    sync = build_weight_sync(APART, policy, generator)
    policy.train(batch, mean_logprob_loss)
    assert not any(torch.equal(live, own) for live, own in pairs(policy, generator))
    sync.sync()
    assert all(torch.equal(live, own) for live, own in pairs(policy, generator))
    assert not any(live.data_ptr() == own.data_ptr() for live, own in pairs(policy, generator))


def test_a_version_is_copied_once(make_policy: MakePolicy, tiny_model: Path) -> None:
    """A validation right after a sync moves no weights again."""
    policy, generator = make_policy(), make_generator(tiny_model)
    sync = build_weight_sync(APART, policy, generator)
    with torch.no_grad():
        next(policy.named_weights())[1].add_(1.0)
    sync.sync()
    live, own = next(pairs(policy, generator))
    assert not torch.equal(live, own)


@pytest.mark.parametrize("sends", ["too much", "too little", "another shape"])
def test_weights_that_are_not_the_generators_are_refused(
    make_policy: MakePolicy, tiny_model: Path, sends: str
) -> None:
    """What has no counterpart would stay old in silence."""
    weights = dict(make_policy().named_weights())
    generator = make_generator(tiny_model)
    before = {name: tensor.clone() for name, tensor in generator.named_weights()}
    name = "model.norm.weight"
    given = {
        "too much": {**weights, "late": torch.zeros(1)},
        "too little": {key: value for key, value in weights.items() if key != name},
        "another shape": {**weights, name: torch.zeros(3)},
    }[sends]
    with pytest.raises(WeightSyncError, match="late" if sends == "too much" else name):
        generator.load_weights(iter(given.items()), 1)
    assert all(torch.equal(tensor, before[key]) for key, tensor in generator.named_weights())
    assert generator.weight_version == 0
