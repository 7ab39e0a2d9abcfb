"""The loops on a policy that is spread over processes: they train, say what served them, and resume without loss."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from refrl.config import SFTRunConfig, load_config
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.training.sft import run_sft

from .conftest import CONFIGS, command

pytestmark = pytest.mark.usefixtures("forked_processes")

Overrides = Callable[[str], list[str]]
SPREAD = ("policy.dtensor_cfg.enabled=true", "cluster.device=cpu")
STOP = "checkpointing.checkpoint_must_save_by=00:00:00:00"
"""Ends an attempt after one step."""


def refrl(loop: str, recipe: str, *words: str) -> None:
    """Run a loop by its own entry point; it must end well."""
    config = str(CONFIGS / f"{recipe}.yaml")
    ran = subprocess.run(
        command(loop, "--config", config, *words), capture_output=True, text=True, timeout=500
    )
    assert ran.returncode == 0, ran.stderr


def state(root: Path, step: int) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint."""
    (file,) = (root / f"step_{step}" / "policy").iterdir()
    return load_file(file)


def served(root: Path) -> dict[str, object]:
    """Return what a run says of its policy."""
    said: dict[str, object] = json.loads((root / "run_info.json").read_text(encoding="utf-8"))["policy"]
    return said


def test_sft_goes_on_in_one_process_on_the_plain_backend(overrides: Overrides, tmp_path: Path) -> None:
    """Two steps on two processes are, to rounding, the first there and the second in a single one."""
    spread = [*SPREAD, "cluster.num_processes=2"]
    refrl("sft", "sft-resume-diamond", *overrides("whole"), *spread)
    first = Path("checkpoints", "step_1")
    shutil.copytree(tmp_path / "whole" / first, tmp_path / "plain" / first)
    words = [*overrides("plain"), "cluster.device=cpu"]
    run_sft(load_config(SFTRunConfig, CONFIGS / "sft-resume-diamond.yaml", words))
    whole, plain = (state(tmp_path / way / "checkpoints", 2) for way in ("whole", "plain"))
    assert served(tmp_path / "whole" / "logs")["name"] == "dtensor"
    assert served(tmp_path / "plain" / "logs")["name"] == "hf"
    assert whole.keys() == plain.keys()
    for name, tensor in whole.items():
        torch.testing.assert_close(plain[name], tensor, rtol=1e-5, atol=1e-7)


@pytest.mark.nightly
def test_a_draft_head_goes_on_in_another_world(overrides: Overrides, tmp_path: Path) -> None:
    """Its weights and moments after two steps on two processes are those of one there and one in a single one."""
    make_model(TinyModelSpec(draft_head=True), tmp_path / "model")
    drafted = [f"policy.model_name={tmp_path / 'model'}", "policy.draft.enabled=true", "cluster.device=cpu"]
    spread = [*drafted, *SPREAD, "cluster.num_processes=2"]
    refrl("grpo", "grpo-smoke", *overrides("whole"), *spread, "checkpointing.save_period=1")
    first = Path("checkpoints", "step_1")
    shutil.copytree(tmp_path / "whole" / first, tmp_path / "plain" / first)
    refrl("grpo", "grpo-smoke", *overrides("plain"), *drafted, "checkpointing.save_period=1")
    whole, plain = (state(tmp_path / way / "checkpoints", 3) for way in ("whole", "plain"))
    heads = [name for name in whole if name.startswith("draft.")]
    assert whole.keys() == plain.keys()
    assert any(name.endswith("exp_avg_sq") for name in heads)
    for name in heads:
        torch.testing.assert_close(plain[name], whole[name], rtol=1e-3, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "layout",
    [(), ("policy.dtensor_cfg.tensor_parallel_size=2",), ("policy.dtensor_cfg.context_parallel_size=2",)],
    ids=["fsdp2", "tp2", "cp2"],
)
def test_a_layout_resumes_bitwise(overrides: Overrides, tmp_path: Path, layout: tuple[str, ...]) -> None:
    """One step and one more are two, to the last bit of weights and moments."""
    words = [*SPREAD, "cluster.num_processes=2", *layout]
    refrl("sft", "sft-resume-diamond", *overrides("whole"), *words)
    refrl("sft", "sft-resume-diamond", *overrides("parts"), *words, STOP)
    refrl("sft", "sft-resume-diamond", *overrides("parts"), *words)
    whole, parts = (state(tmp_path / way / "checkpoints", 2) for way in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())
    assert {"step_1", "step_2"} <= {path.name for path in (tmp_path / "parts" / "checkpoints").iterdir()}


def test_grpo_trains_and_says_what_served_it(overrides: Overrides, tmp_path: Path) -> None:
    """Two steps on two processes that share every layer; the export is a model that training has moved."""
    words = [*SPREAD, "cluster.num_processes=2", "policy.dtensor_cfg.tensor_parallel_size=2"]
    refrl("grpo", "grpo-smoke", *overrides("run"), *words, "grpo.max_num_steps=2", "grpo.val_at_start=false")
    said = served(tmp_path / "run" / "logs")
    assert said["name"] == "dtensor"
    assert said["mesh"] == {"data": 1, "context": 1, "tensor": 2, "expert": 1}
    exported = load_file(tmp_path / "run" / "checkpoints" / "final" / "model.safetensors")
    model = next(word for word in overrides("run") if word.startswith("policy.model_name=")).partition("=")[2]
    before = load_file(Path(model) / "model.safetensors")
    assert exported.keys() == before.keys()
    assert all(not torch.equal(exported[name], tensor) for name, tensor in before.items())
