"""A policy small enough to be made for every test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from refrl.algorithms.batching import Batch, TrainSample, make_batch
from refrl.config import PolicyConfig, validate_config
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.models.tokenization import make_byte_tokenizer
from refrl.policy.hf import HFPolicy
from refrl.training.build import build_policy

MakePolicy = Callable[..., HFPolicy]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a model of one layer."""
    directory = tmp_path_factory.mktemp("tiny") / "model"
    make_model(TinyModelSpec(hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1, seed=3), directory)
    return directory


@pytest.fixture
def make_policy(tiny_model: Path) -> MakePolicy:
    """Return a function that makes a policy; keywords replace values of `policy.*`."""

    def make(*, with_reference: bool = False, temperature: float = 1.0, **changes: Any) -> HFPolicy:
        values = {
            "model_name": str(tiny_model),
            "train_global_batch_size": 5,
            "train_micro_batch_size": 5,
            "max_total_sequence_length": 32,
            "generation": {"temperature": temperature},
            **changes,
        }
        policy = build_policy(
            validate_config(PolicyConfig, values, source="test"),
            make_byte_tokenizer(),
            device=torch.device("cpu"),
            num_updates=10,
            with_reference=with_reference,
        )
        assert isinstance(policy, HFPolicy)
        return policy

    return make


@pytest.fixture
def batch() -> Batch:
    """Return five rows of unequal length, with advantages of both signs."""
    stream = torch.Generator().manual_seed(5)
    samples = []
    for prompt_length, length in [(3, 1), (9, 4), (1, 7), (5, 2), (2, 5)]:
        ids = torch.randint(0, 259, (prompt_length + length,), generator=stream).tolist()
        samples.append(
            TrainSample(
                prompt_ids=tuple(ids[:prompt_length]),
                completion_ids=tuple(ids[prompt_length:]),
                sampling_logprobs=(-1.0,) * length,
                reward=0.0,
                group_id=0,
            )
        )
    made = make_batch(samples, pad_token_id=256)
    made.advantages_B = torch.tensor([1.0, -0.5, 2.0, 0.25, -1.5])
    return made
