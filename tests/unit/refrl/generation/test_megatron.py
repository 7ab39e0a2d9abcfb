"""Megatron-core as the engine: it draws what the torch engine draws, and computes with what it was given."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sync_cells import CONFIGS, PROMPTS, write_models
from torch import nn

from refrl.config import PolicyConfig, validate_config
from refrl.generation.base import Generator, SamplingParams
from refrl.models.loading import load_model
from refrl.training.build_generation import build_engine
from refrl.weight_sync.base import Part, WeightSyncError
from refrl.weight_sync.tensors import fingerprint

pytest.importorskip(
    "megatron.core", reason="Megatron-core is not installed: pip install 'seatrial[megatron]'"
)
SAMPLING = SamplingParams(max_new_tokens=12, temperature=0.7, top_p=0.95, stop_token_ids=tuple(range(40)))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return the directory of a model of each kind."""
    if torch.cuda.is_available():
        pytest.skip("Megatron-core takes the CUDA device that is here")
    return write_models(tmp_path_factory.mktemp("models"))


def engine(directory: Path, backend: str) -> Generator:
    """Return an engine with a model."""
    values = {
        "model_name": str(directory),
        "train_global_batch_size": 4,
        "train_micro_batch_size": 4,
        "max_total_sequence_length": 64,
        "generation": {"backend": backend, "colocated": {"enabled": False}},
    }
    config = validate_config(PolicyConfig, values, source="test")
    return build_engine(config, pad_token_id=0, device=torch.device("cpu"))


def send(generator: Generator, model: nn.Module) -> None:
    """Bring a model's weights to an engine, as a weight sync does."""
    weights = dict(chain(model.named_parameters(), model.named_buffers()))
    generator.begin(1, None)
    generator.receive([Part(name, tensor.detach().reshape(-1)) for name, tensor in weights.items()])
    generator.commit({name: fingerprint(tensor) for name, tensor in weights.items()})


@pytest.mark.parametrize("kind", CONFIGS)
def test_it_draws_what_the_torch_engine_draws(kind: str, models: Mapping[str, Path]) -> None:
    """Prompts of unequal length, rows that end early, a filter."""
    mine, other = (
        engine(models[kind], backend).generate(PROMPTS * 3, SAMPLING, torch.Generator().manual_seed(0))
        for backend in ("megatron", "torch")
    )
    assert {row.finish_reason for row in mine} == {"stop", "length"}
    for one, two in zip(mine, other, strict=True):
        assert (one.ids, one.finish_reason, one.kept_ids) == (two.ids, two.finish_reason, two.kept_ids)
        assert torch.allclose(torch.tensor(one.logprobs), torch.tensor(two.logprobs), rtol=0, atol=1e-5)


def test_a_tensor_that_it_loses_is_named(models: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync is refused, and so is sampling, until one succeeds."""
    generator: Any = engine(models["dense"], "megatron")
    model = load_model(models["dense"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    served = generator._served_model
    lost = "model.layers.1.self_attn.k_proj.weight"
    before = dict(served.weights())[lost].clone()
    take = served.take
    monkeypatch.setattr(served, "take", lambda weights: take({**weights, lost: before}))
    with pytest.raises(WeightSyncError, match=rf"Megatron-core does not compute with .*: {lost}$"):
        send(generator, model)
    with pytest.raises(WeightSyncError, match="sync again before sampling"):
        generator.generate(PROMPTS, SAMPLING, torch.Generator())
    monkeypatch.undo()
    send(generator, model)
    assert generator.generate(PROMPTS, SAMPLING, torch.Generator())[0].weight_version == 1


def test_what_is_aborted_is_given_up_after_a_token(models: Mapping[str, Path]) -> None:
    """It goes on elsewhere; weights are never shared."""
    generator = engine(models["dense"], "megatron")
    params = SamplingParams(max_new_tokens=5, stop_token_ids=())
    generator.abort()
    rows = generator.generate(PROMPTS, params, torch.Generator())
    generator.resume()
    assert {(len(row.ids), row.finish_reason) for row in rows} == {(1, "abort")}
    assert generator.generate(PROMPTS, params, torch.Generator())[0].finish_reason == "length"
    with pytest.raises(WeightSyncError, match="Megatron-core shares no weights"):
        generator.share_weights(iter(()))
