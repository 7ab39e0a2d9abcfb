"""After every sync the engine has the policy's bits, and the policy's log-probabilities of what it samples.

The cells of vLLM are in tests/peers/vllm_engine.py.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.sync_cells import KINDS, hold, write_models

WHOLE: dict[str, Any] = {}
DELTA = {"delta_compression": {"enabled": True, "full_sync_interval": 7, "sparse_bucket_size_bytes": 5000}}
WAYS = {"whole": WHOLE, "delta": DELTA}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return the directory of a model of each kind."""
    made = write_models(tmp_path_factory.mktemp("models"))
    return {**made, "lora": made["dense"]}


@pytest.fixture(params=["torch", "megatron"])
def backend(request: pytest.FixtureRequest) -> str:
    """Return an engine that is installed here."""
    if request.param == "megatron" and importlib.util.find_spec("megatron") is None:
        pytest.skip("Megatron-core is not installed: pip install 'seatrial[megatron]'")
    if request.param == "megatron" and torch.cuda.is_available():
        pytest.skip("Megatron-core takes the CUDA device that is here")
    return str(request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_syncs_are_exact(backend: str, kind: str, models: Mapping[str, Path]) -> None:
    """Three syncs of changes, the first of which follows a whole one; the nightly test below takes twenty."""
    assert hold(models[kind], kind, {"backend": backend, **DELTA}, num_syncs=3).num_tensors > 10


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_syncs_are_exact(backend: str, kind: str, way: str, models: Mapping[str, Path]) -> None:
    """In this process, whole and as changes with a whole sync in between."""
    assert hold(models[kind], kind, {"backend": backend, **WAYS[way]}, num_syncs=20).num_syncs == 20


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS)
def test_twenty_syncs_to_another_process_are_exact(
    backend: str, way: str, models: Mapping[str, Path]
) -> None:
    """In messages, to an engine in a process of its own."""
    generation = {"backend": backend, "placement": "process", **WAYS[way]}
    assert hold(models["tied"], "tied", generation, num_syncs=20).num_syncs == 20
