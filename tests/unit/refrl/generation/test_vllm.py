"""What can be said of the vLLM engine where there is no vLLM; tests/peers/vllm_engine.py runs it."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from refrl.config import ConfigError, PolicyConfig, validate_config
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.models.tokenization import make_byte_tokenizer
from refrl.training.build_generation import build_generator

CPU = torch.device("cpu")


def config(model: Path, **generation: Any) -> PolicyConfig:
    """Return a policy whose rollouts vLLM samples."""
    values = {
        "model_name": str(model),
        "train_global_batch_size": 4,
        "train_micro_batch_size": 4,
        "max_total_sequence_length": 32,
        "generation": {"backend": "vllm", "colocated": {"enabled": False}, **generation},
    }
    return validate_config(PolicyConfig, values, source="test")


def test_shared_weights_are_refused() -> None:
    """vLLM keeps its own."""
    with pytest.raises(ConfigError, match="backend=vllm needs a generator with its own weights"):
        config(Path("model"), colocated={"enabled": True})


def test_without_vllm_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the interpreter's name."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    make_model(TinyModelSpec(hidden_size=32, num_layers=1, num_heads=1, num_kv_heads=1), tmp_path / "model")
    with pytest.raises(ConfigError, match=r"cannot import it .* policy\.generation\.vllm_cfg\.python"):
        build_generator(config(tmp_path / "model"), make_byte_tokenizer(), device=CPU)


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Before anything is loaded."""
    wanted = config(tmp_path, placement="process", vllm_cfg={"python": str(tmp_path / "python")})
    with pytest.raises(ConfigError, match="python cannot be started"):
        build_generator(wanted, make_byte_tokenizer(), device=CPU)
