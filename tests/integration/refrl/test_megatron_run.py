"""GRPO trains on Megatron-core spread over processes as in one; one process: test_backend_diamond.py."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from refrl.config import ClusterConfig
from refrl.runtime.launcher import launch

pytest.importorskip(
    "megatron.core", reason="Megatron-core is not installed: pip install 'seatrial[megatron]'"
)
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Megatron-core takes the CUDA devices: tests/gpu/test_megatron_gpu.py"
)

Overrides = Callable[[str], list[str]]
ON_MEGATRON = "policy.megatron_cfg.enabled=true"


def furthest(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Return the largest relative difference of any tensor."""
    assert mine.keys() == theirs.keys() != set()
    return max(float((mine[name] - theirs[name]).norm() / theirs[name].norm()) for name in theirs)


@pytest.mark.nightly
@pytest.mark.parametrize("split", ["tensor", "pipeline"])
def test_two_processes_train_as_one_does(overrides: Overrides, split: str) -> None:
    alone, together = overrides("alone"), overrides("together")
    launch(["grpo", "--config", "grpo-smoke", *alone, ON_MEGATRON], ClusterConfig())
    spread = [f"policy.megatron_cfg.{split}_model_parallel_size=2", "cluster.num_processes=2"]
    launch(
        ["grpo", "--config", "grpo-smoke", *together, ON_MEGATRON, *spread], ClusterConfig(num_processes=2)
    )
    places = [
        Path(one.partition("=")[2]) / "final" / "model.safetensors"
        for words in (alone, together)
        for one in words
        if one.startswith("checkpointing.checkpoint_dir")
    ]
    first, second = (load_file(place) for place in places)
    assert furthest(second, first) <= 1e-4
