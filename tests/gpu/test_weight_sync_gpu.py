"""Weights broadcast by NCCL to an engine on another CUDA device, which samples with exactly those bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor

from refrl.config import PolicyConfig, validate_config
from refrl.generation.base import SamplingParams
from refrl.generation.broadcast_link import BroadcastLink
from refrl.generation.process import GeneratorLostError, ProcessGenerator
from refrl.models.loading import load_model
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.models.tokenization import make_byte_tokenizer
from refrl.training.build_generation import build_generator, build_weight_sync
from refrl.weight_sync.base import WeightSync
from refrl.weight_sync.tensors import fingerprints

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
POLICY = torch.device("cuda", 0)
SAMPLING = SamplingParams(max_new_tokens=12, greedy=True, stop_token_ids=())


class Source:
    """A model on the first device, whose weights are moved by hand."""

    shares_weights = False

    def __init__(self, directory: Path) -> None:
        """Load it."""
        self.model = load_model(directory).to(POLICY)
        self.version = 0

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters and buffers."""
        yield from self.model.named_parameters()
        yield from self.model.named_buffers()

    def move(self, share: float) -> None:
        """Change a share of every parameter."""
        stream = torch.Generator(device=POLICY).manual_seed(self.version)
        with torch.no_grad():
            for tensor in self.model.parameters():
                chosen = torch.rand(tensor.shape, generator=stream, device=POLICY) < share
                tensor += chosen * torch.randn(tensor.shape, generator=stream, device=POLICY)
        self.version += 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    make_model(TinyModelSpec(hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=2), directory)
    return directory


def config_of(model: Path, *, sends_changes: bool) -> PolicyConfig:
    """Return a policy whose engine has the last device for itself; a tensor needs several buckets."""
    generation = {
        "colocated": {"enabled": False, "resources": {"gpus_per_node": 1}},
        "placement": "process",
        "weight_transport": "broadcast",
        "weight_bucket_size_bytes": 20_000,
        "delta_compression": {"enabled": sends_changes, "sparse_bucket_size_bytes": 20_000},
    }
    values = {
        "model_name": str(model),
        "train_global_batch_size": 4,
        "train_micro_batch_size": 4,
        "max_total_sequence_length": 64,
        "generation": generation,
    }
    return validate_config(PolicyConfig, values, source="test")


def opened(config: PolicyConfig, source: Source) -> tuple[ProcessGenerator, WeightSync]:
    engine = build_generator(config, make_byte_tokenizer(), device=POLICY)
    assert isinstance(engine, ProcessGenerator)
    return engine, build_weight_sync(config.generation, source, engine)


def assert_equal(engine: ProcessGenerator, source: Source) -> None:
    assert fingerprints(dict(engine.named_weights())) == fingerprints(dict(source.named_weights()))


@pytest.mark.parametrize("sends_changes", [False, True])
def test_the_engine_on_the_other_device_has_the_policys_bits_after_each_sync(
    model: Path, sends_changes: bool
) -> None:
    source = Source(model)
    engine, sync = opened(config_of(model, sends_changes=sends_changes), source)
    with closing(engine):
        assert isinstance(engine.link, BroadcastLink)
        assert engine.link._pair is not None
        assert engine.link._pair.device == POLICY
        seen = []
        for _ in range(4):
            source.move(0.05)
            sync.sync()
            assert_equal(engine, source)
            (row,) = engine.generate([[65, 66, 67]], SAMPLING, torch.Generator().manual_seed(0))
            ids = torch.tensor([[65, 66, 67, *row.ids]], device=POLICY)
            with torch.no_grad():
                logits = source.model(input_ids=ids, use_cache=False).logits[0].float()
            assert row.ids == tuple(logits[2:-1].argmax(-1).tolist())
            seen.append(row.ids)
        assert len(set(seen)) > 1


def test_an_engine_that_is_killed_in_a_sync_is_named_and_another_takes_its_place(model: Path) -> None:
    source = Source(model)
    config = config_of(model, sends_changes=False)
    engine, sync = opened(config, source)
    source.move(0.5)
    exchange = engine.link.ask
    asked = 0

    def killing(message: object) -> object:
        nonlocal asked
        asked += 1
        if asked == 3:  # the begin of the sync and one bucket came before
            os.kill(engine.pid or 0, signal.SIGKILL)
        return exchange(message)  # type: ignore[arg-type]

    engine.link.ask = killing  # type: ignore[method-assign, assignment]
    with pytest.raises(GeneratorLostError, match="ended by signal 9"):
        sync.sync()
    engine.close()
    torch.cuda.synchronize(POLICY)  # nothing waits for the engine any more
    other, _ = opened(config, source)
    with closing(other):
        assert_equal(other, source)
