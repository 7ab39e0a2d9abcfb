"""One of two ranks is killed in a phase of a step: the other is stopped, the error names it, and a resume goes on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from refrl.checkpointing.layout import whole_checkpoints
from refrl.config import GRPORunConfig
from refrl.config.loading import load_config
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.runtime.launcher import RankError, launch

from .conftest import CONFIGS

KILLED = Path(__file__).with_name("killed_rank.py")
NUM_STEPS = 4
CALLS = {"training": 3, "generation": 4, "sync": 4}
"""After the second step's checkpoint: a validation generates, and a first sync takes place, before step 1."""


@dataclass(frozen=True)
class Runs:
    """Starts runs of one configuration on a device."""

    model: Path
    folder: Path
    device: str

    def words(self, name: str) -> list[str]:
        """Return the words of a run with its own folders."""
        options = {
            "policy.model_name": self.model,
            "policy.generation.colocated.enabled": "false",
            "policy.generation.delta_compression.enabled": "true",
            "policy.dtensor_cfg.enabled": "true",
            "grpo.max_num_steps": NUM_STEPS,
            "logger.log_dir": self.folder / name / "logs",
            "checkpointing.checkpoint_dir": self.folder / name / "checkpoints",
            "checkpointing.save_period": 1,
            "cluster.num_processes": 2,
            "cluster.device": self.device,
        }
        return ["grpo", "--config", "grpo-smoke", *(f"{key}={value}" for key, value in options.items())]

    def run(self, name: str, *killed: str) -> None:
        """Run it, or go on with it: as `refrl` does, or with a rank that kills itself."""
        words = self.words(name)
        config = load_config(GRPORunConfig, CONFIGS / "grpo-smoke.yaml", words[3:])
        command = (sys.executable, str(KILLED), *killed) if killed else None
        launch(words, config.cluster, command=command)

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        """Return every tensor of the last checkpoint's policy."""
        last = whole_checkpoints(self.folder / name / "checkpoints")[-1]
        assert last.directory.name == f"step_{NUM_STEPS}"
        return {
            f"{path.name} {key}": tensor
            for path in sorted((last.directory / "policy").rglob("*.safetensors"))
            for key, tensor in load_file(path).items()
        }


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("cpu", marks=pytest.mark.nightly),
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
            ],
        ),
    ],
)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs, of which one has been run whole."""
    folder = tmp_path_factory.mktemp(f"killed-{request.param}")
    make_model(TinyModelSpec(hidden_size=32, num_layers=2, num_heads=2, num_kv_heads=1), folder / "model")
    found = Runs(folder / "model", folder, request.param)
    found.run("whole")
    return found


@pytest.mark.parametrize(
    "phase", ["sync", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("training", "generation"))]
)
def test_a_rank_that_is_killed_is_named_and_the_run_goes_on(runs: Runs, phase: str) -> None:
    """The resumed run ends with the bits of the one that was not killed."""
    with pytest.raises(RankError, match="rank 1 ended by signal 9"):
        runs.run(phase, "1", phase, str(CALLS[phase]))
    reached = [
        checkpoint.directory.name for checkpoint in whole_checkpoints(runs.folder / phase / "checkpoints")
    ]
    assert reached[-1:] in (["step_1"], ["step_2"], ["step_3"])
    runs.run(phase)
    found, expected = runs.weights(phase), runs.weights("whole")
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
