"""Each format whose library is not in the shared environment, written by that library and read by us."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.peer, pytest.mark.slow]

Worker = Callable[..., dict[str, Any]]
EXPECTED = {step: str(1.0 / step) for step in range(1, 21)} | {5: "nan", 6: "inf"}


@pytest.fixture(scope="module")
def worker(peer_python: Callable[[str], Path], repository: Path) -> Worker:
    """Return a function that runs the worker in the environment of the libraries."""
    python = peer_python("formats")

    def run(*words: str | Path) -> dict[str, Any]:
        ran = subprocess.run(
            [str(python), str(repository / "tests/peers/formats_worker.py"), *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(repository / "src")},
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        if words[0] == "write":
            return {}
        result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return result

    return run


@pytest.mark.parametrize(
    ("name", "accuracy"),
    [("mlflow_files", "accuracy"), ("mlflow_store", "accuracy"), ("trackio", "validation/accuracy")],
)
def test_what_was_logged_is_read(name: str, accuracy: str, worker: Worker, tmp_path: Path) -> None:
    worker("write", name, tmp_path)
    log = worker("read", tmp_path)
    loss = log["series"]["train/loss"]
    assert dict(zip(loss["steps"], loss["values"], strict=True)) == EXPECTED
    assert loss["timed"]
    assert log["series"][accuracy]["values"] == ["0.5"] * 20
    assert log["damage"] == []
    if name == "trackio":
        assert log["series"]["nothing"]["nulls"] == 20


@pytest.fixture(scope="module")
def wandb_folder(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two attempts of one W&B run."""
    folder = tmp_path_factory.mktemp("wandb-logs")
    worker("write", "wandb", folder)
    return folder


def test_wandb_offline_with_a_resumed_run(worker: Worker, wandb_folder: Path) -> None:
    log = worker("read", wandb_folder)
    loss = log["series"]["train/loss"]
    assert loss["steps"] == list(range(1, 18)), "steps 18 to 20 were abandoned"
    assert loss["values"][:14] == [EXPECTED[step] for step in range(1, 15)]
    assert loss["values"][14:] == [str(1.0 / step + 100.0) for step in (15, 16, 17)]
    assert loss["ghosts"] == 6
    assert loss["timed"]
    assert log["series"]["nothing"]["nulls"] == 17
    assert log["series"]["validation.accuracy"]["values"] == ["0.5"] * 17
    assert log["unread"] == {"note": "text", "weights": "histogram"}
    assert log["damage"] == []


def test_one_tag_of_wandb(worker: Worker, wandb_folder: Path) -> None:
    assert set(worker("read", wandb_folder, "train/loss")["series"]) == {"train/loss"}


def test_a_cut_wandb_file_says_after_which_step(worker: Worker, wandb_folder: Path, tmp_path: Path) -> None:
    first = min(wandb_folder.rglob("run-*.wandb"), key=lambda path: path.parent.name)
    (tmp_path / first.name).write_bytes(first.read_bytes()[:40_000])
    log = worker("read", tmp_path)
    last = log["series"]["train/loss"]["steps"][-1]
    assert 5 <= last < 20
    assert log["damage"][0].startswith(f"truncated after step {last}: ")


def test_damaged_wandb_files_give_a_log_or_blocked(
    worker: Worker, wandb_folder: Path, tmp_path: Path
) -> None:
    first = min(wandb_folder.rglob("run-*.wandb"), key=lambda path: path.parent.name)
    counted = worker("mutate", first, tmp_path, "1000")
    assert counted["damaged"] + counted["blocked"] > 900
