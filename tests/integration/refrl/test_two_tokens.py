"""Every engine samples from the model's distribution; vLLM's case is in tests/peers/vllm_engine.py."""

import importlib.util
from pathlib import Path

import pytest
import torch
from tests.two_tokens import hold, make


@pytest.mark.parametrize("backend", ["torch", "megatron"])
def test_twenty_thousand_completions_are_of_the_distribution(backend: str, tmp_path: Path) -> None:
    """Their counts (chi-square), what the engine says of them, where rows stop, and prompts at the limits."""
    if backend == "megatron" and (importlib.util.find_spec("megatron") is None or torch.cuda.is_available()):
        pytest.skip("Megatron-core is not installed, or takes the CUDA device that is here")
    hold(make(tmp_path / "model"), {"backend": backend})
