"""SFT and GRPO on every policy backend: a resume is bitwise on each, and to rounding across them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from refrl.config import GRPORunConfig, SFTRunConfig, load_config
from refrl.training.grpo import run_grpo
from refrl.training.sft import run_sft

from .conftest import CONFIGS

Overrides = Callable[[str], list[str]]
STOP = "checkpointing.checkpoint_must_save_by=00:00:00:00"
"""Ends an attempt after one step."""
ENABLED = {
    "hf": [],
    "dtensor": ["policy.dtensor_cfg.enabled=true"],
    "megatron": ["policy.megatron_cfg.enabled=true"],
}
BACKENDS = [
    "dtensor",
    pytest.param(
        "megatron",
        marks=pytest.mark.skipif(
            torch.cuda.is_available(),
            reason="Megatron-core takes the CUDA devices: tests/gpu/test_megatron_gpu.py",
        ),
    ),
]
OTHERS = {"dtensor": ["hf", "megatron"], "megatron": ["hf", "dtensor"]}


def tuned(overrides: list[str], backend: str, *more: str) -> dict[str, torch.Tensor]:
    """Fine-tune, or go on; return weights, masters and moments of the last checkpoint."""
    words = [*overrides, "cluster.device=cpu", *ENABLED[backend], *more]
    config = load_config(SFTRunConfig, CONFIGS / "sft-resume-diamond.yaml", words)
    run_sft(config)
    last = max(Path(config.checkpointing.checkpoint_dir).glob("step_*"))
    (file,) = (last / "policy").iterdir()
    return load_file(file)


def furthest(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Return the largest relative difference of any trained weight."""
    names = [name for name in theirs if name.startswith("model.") and theirs[name].is_floating_point()]
    assert mine.keys() == theirs.keys()
    assert names
    return max(float((mine[name] - theirs[name]).norm() / theirs[name].norm()) for name in names)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_steps_are_one_and_one(overrides: Overrides, backend: str) -> None:
    """Bit by bit where one backend takes both; within 1e-5 where another has taken the first."""
    if backend == "megatron":
        pytest.importorskip("megatron.core", reason="pip install 'seatrial[megatron]'")
    whole = tuned(overrides("whole"), backend)
    tuned(overrides("resumed"), backend, STOP)
    resumed = tuned(overrides("resumed"), backend)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())
    for other in OTHERS[backend]:
        tuned(overrides(other), other, STOP)
        assert furthest(tuned(overrides(other), backend), whole) <= 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_grpo_logs_what_it_logs_on_the_plain_backend(overrides: Overrides, backend: str) -> None:
    """One step, sampled alike: the trained weights agree to rounding, and the run says what served it."""
    if backend == "megatron":
        pytest.importorskip("megatron.core", reason="pip install 'seatrial[megatron]'")
    left = {}
    for each in ("hf", backend):
        words = [*overrides(each), "cluster.device=cpu", "grpo.max_num_steps=1", *ENABLED[each]]
        # Adam divides by the root of the second moment, and rounding of a gradient near 0 by its epsilon.
        config = load_config(
            GRPORunConfig, CONFIGS / "grpo-smoke.yaml", [*words, "policy.optimizer.eps=1e-4"]
        )
        run_grpo(config)
        left[each] = load_file(Path(config.checkpointing.checkpoint_dir) / "final" / "model.safetensors")
        said = json.loads((Path(config.logger.log_dir) / "run_info.json").read_text(encoding="utf-8"))
        assert said["policy"]["name"] == each
    assert left["hf"].keys() == left[backend].keys()
    for name, tensor in left["hf"].items():
        torch.testing.assert_close(left[backend][name], tensor, rtol=1e-4, atol=1e-6)
