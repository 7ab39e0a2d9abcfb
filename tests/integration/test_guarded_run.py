"""Guards in real runs of refrl: silent on a sound one, and a planted fault is recorded, or ends the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("forked_processes")

GUARDING = "seatrial.targets.reference.guards.observer"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model."""
    output = tmp_path_factory.mktemp("guarded") / "model"
    make = [sys.executable, "-m", "refrl", "make-model", "--output", str(output)]
    subprocess.run(make, check=True, capture_output=True)
    return output


def run(
    place: Path, model: Path, launcher: list[str], guards: str, *options: str
) -> subprocess.CompletedProcess[str]:
    """Run three steps, with the log below `place`."""
    words = [
        "grpo", "--config", "grpo-smoke", f"policy.model_name={model}", f"logger.log_dir={place / 'logs'}",
        f"checkpointing.checkpoint_dir={place / 'checkpoints'}", f"logger.observers=[{GUARDING}:{guards}]",
        "policy.generation.colocated.enabled=false", *options,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


def failed(place: Path) -> dict[str, str]:
    """Return what the guards of a run saw."""
    found = json.loads((place / "logs" / "guards.json").read_text())
    assert sum(one["asked"] for one in found.values()) > 10
    return {name: one["failed"]["reason"] for name, one in found.items() if one["failed"]}


def test_a_sound_run_passes_every_guard(tmp_path: Path, model: Path) -> None:
    """In bfloat16, with two updates a step, a filter of sampling and an adapter: what makes false alarms."""
    options = (
        "policy.precision=bfloat16", "policy.train_global_batch_size=8", "policy.train_micro_batch_size=4",
        "policy.generation.top_p=0.8", "policy.lora_cfg.enabled=true", "policy.scheduler.name=cosine",
    )  # fmt: skip
    ended = run(tmp_path, model, ["-m", "refrl"], "RunGuards", *options)
    assert ended.returncode == 0, ended.stderr
    assert failed(tmp_path) == {}


def test_a_fault_is_recorded_and_the_run_goes_on(tmp_path: Path, model: Path) -> None:
    """Weights that arrive at every second version: their values and their version both tell."""
    launcher = ["-m", "seatrial.faults.launch", "copies-every-second-version", "--"]
    ended = run(tmp_path, model, launcher, "RecordingGuards")
    assert ended.returncode == 0, ended.stderr
    assert {"guard names and checksums after sync", "guard lag window"} <= failed(tmp_path).keys()


def test_a_fault_ends_the_run(tmp_path: Path, model: Path) -> None:
    """At the first failure, with its words on the console and in the record."""
    launcher = ["-m", "seatrial.faults.launch", "last-row-of-each-cut-dropped", "--"]
    ended = run(tmp_path, model, launcher, "RunGuards")
    assert ended.returncode == 1
    assert "GuardError" in ended.stderr
    assert len(failed(tmp_path)) == 1
