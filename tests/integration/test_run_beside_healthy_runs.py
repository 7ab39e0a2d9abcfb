"""Real short runs of refrl held to earlier ones of the same configuration, by `seatrial watch --baseline`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from seatrial.cli import main

pytestmark = pytest.mark.usefixtures("forked_processes")

OPTIONS = (
    "grpo.max_num_steps=10",
    "grpo.val_period=4",
    "grpo.max_val_samples=4",
    "grpo.num_prompts_per_step=2",
    "policy.train_global_batch_size=8",
    "policy.train_micro_batch_size=8",
    "grpo.num_generations_per_prompt=4",
    "cluster.num_threads=1",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and healthy runs of seeds 0 to 3."""
    place = tmp_path_factory.mktemp("nightlies")
    command = [sys.executable, "-m", "refrl", "make-model", "--output", str(place / "model")]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    for seed in range(4):
        train(place, f"healthy-{seed}", seed)
    return place


def train(place: Path, name: str, seed: int, changes: Sequence[str] = ()) -> Path:
    """Run refrl, and return where it logged."""
    logs = place / name / "logs"
    words = [*OPTIONS, f"grpo.seed={seed}", f"policy.model_name={place / 'model'}", f"logger.log_dir={logs}"]
    words += [
        f"checkpointing.checkpoint_dir={place / name / 'checkpoints'}",
        "checkpointing.enabled=false",
        *changes,
    ]
    command = [sys.executable, "-m", "refrl", "grpo", "--config", "grpo-smoke", *words]
    ran = subprocess.run(command, check=False, timeout=200, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return logs


def baseline(folder: Path) -> list[str]:
    """Return the option and the logs of the healthy runs."""
    return ["--baseline", *(str(folder / f"healthy-{seed}" / "logs") for seed in range(4))]


def said(folder: Path, logs: Path) -> dict[str, dict[str, object]]:
    """Return the verdicts of the rules beside healthy runs."""
    written = folder / "verdicts.json"
    main(["watch", str(logs), *baseline(folder), "--rule", "baseline", "--json", str(written)])
    return {one["name"].removeprefix("rule "): one for one in json.loads(written.read_text())["verdicts"]}


def test_a_healthy_run_of_another_seed_is_quiet(folder: Path) -> None:
    """All three rules had their inputs."""
    found = said(folder, train(folder, "tonight", 9))
    assert {one["outcome"] for one in found.values()} == {"Pass"}


def test_another_rate_is_named_where_it_was_asked_for_and_fails_where_it_was_not(folder: Path) -> None:
    """By the configuration that refrl leaves beside its log; with that of the healthy runs the code is at fault."""
    logs = train(folder, "changed", 9, ["policy.optimizer.lr=5e-3"])
    found = said(folder, logs)
    assert {one["outcome"] for one in found.values()} == {"Skipped"}
    assert "policy.optimizer.lr differs" in str(found["baseline-level"]["reason"])
    healthy = json.loads((folder / "healthy-0" / "logs" / "run_info.json").read_text())
    (logs / "run_info.json").write_text(json.dumps(healthy))
    found = said(folder, logs)
    assert found["baseline-same"]["outcome"] == "Fail"
    assert '"train/lr" is 0.005 at step 2, 0.001 in all 4 healthy runs' in str(
        found["baseline-same"]["reason"]
    )
