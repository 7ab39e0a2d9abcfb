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


@pytest.mark.nightly
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
@pytest.mark.parametrize(
    ("recipe", "spec", "words", "part"),
    [
        ("grpo-smoke", TinyModelSpec(draft_head=True), ["policy.draft.enabled=true"], "draft."),
        ("grpo-audio", TinyModelSpec(family="qwen2_audio"), [], "optimizer.model.audio_tower."),
    ],
    ids=["draft", "audio"],
)
def test_what_one_architecture_has_goes_on_in_another_world(
    overrides: Overrides, tmp_path: Path, recipe: str, spec: TinyModelSpec, words: list[str], part: str
) -> None:
    """Weights and moments after three steps on two processes are those of one there and two in a single one."""
    make_model(spec, tmp_path / "model")
    made = [
        f"policy.model_name={tmp_path / 'model'}",
        "checkpointing.save_period=1",
        "cluster.device=cpu",
        *words,
    ]
    refrl("grpo", recipe, *overrides("whole"), *made, *SPREAD, "cluster.num_processes=2")
    first = Path("checkpoints", "step_1")
    shutil.copytree(tmp_path / "whole" / first, tmp_path / "plain" / first)
    refrl("grpo", recipe, *overrides("plain"), *made)
    whole, plain = (state(tmp_path / way / "checkpoints", 3) for way in ("whole", "plain"))
    own = [name for name in whole if name.startswith(part)]
    assert whole.keys() == plain.keys()
    assert any(name.endswith("exp_avg_sq") for name in own)
    for name in own:
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
