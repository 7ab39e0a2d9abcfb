"""Each format whose library is not in the shared environment, written by that library and read by us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.peer, pytest.mark.slow]

Worker = Callable[..., dict[str, Any]]
EXPECTED = {step: str(1.0 / step) for step in range(1, 21)} | {5: "nan", 6: "inf"}


@pytest.mark.parametrize(
    ("name", "accuracy"),
    [
        pytest.param("mlflow_files", "accuracy", marks=pytest.mark.nightly),
        ("mlflow_store", "accuracy"),
        ("trackio", "validation/accuracy"),
    ],
)
def test_what_was_logged_is_read(name: str, accuracy: str, formats_worker: Worker, tmp_path: Path) -> None:
    formats_worker("write", name, tmp_path)
    log = formats_worker("read", tmp_path)
    loss = log["series"]["train/loss"]
    assert dict(zip(loss["steps"], loss["values"], strict=True)) == EXPECTED
    assert loss["timed"]
    assert log["series"][accuracy]["values"] == ["0.5"] * 20
    assert log["damage"] == []
    if name == "trackio":
        assert log["series"]["nothing"]["nulls"] == 20


@pytest.fixture(scope="module")
def wandb_folder(formats_worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two attempts of one W&B run."""
    folder = tmp_path_factory.mktemp("wandb-logs")
    formats_worker("write", "wandb", folder)
    return folder


def test_wandb_offline_with_a_resumed_run(formats_worker: Worker, wandb_folder: Path) -> None:
    log = formats_worker("read", wandb_folder)
    loss = log["series"]["train/loss"]
    assert loss["steps"] == list(range(1, 18)), "steps 18 to 20 were abandoned"
    assert loss["values"][:14] == [EXPECTED[step] for step in range(1, 15)]
    assert loss["values"][14:] == [str(1.0 / step + 100.0) for step in (15, 16, 17)]
    assert loss["abandoned"] == 6
    assert loss["timed"]
    assert log["series"]["nothing"]["nulls"] == 17
    assert log["series"]["validation.accuracy"]["values"] == ["0.5"] * 17
    assert log["unread"] == {"note": "text", "weights": "histogram"}
    assert log["damage"] == []


def test_one_tag_of_wandb(formats_worker: Worker, wandb_folder: Path) -> None:
    assert set(formats_worker("read", wandb_folder, "train/loss")["series"]) == {"train/loss"}


def test_a_cut_wandb_file_says_after_which_step(
    formats_worker: Worker, wandb_folder: Path, tmp_path: Path
) -> None:
    first = min(wandb_folder.rglob("run-*.wandb"), key=lambda path: path.parent.name)
    (tmp_path / first.name).write_bytes(first.read_bytes()[:40_000])
    log = formats_worker("read", tmp_path)
    last = log["series"]["train/loss"]["steps"][-1]
    assert 5 <= last < 20
    assert log["damage"][0].startswith(f"truncated after step {last}: ")


def test_verl_writes_what_is_not_finite_as_null(formats_worker: Worker, tmp_path: Path) -> None:
    formats_worker("write", "verl", tmp_path)
    log = formats_worker("read", tmp_path)
    loss = log["series"]["train/loss"]
    assert dict(zip(loss["steps"], loss["values"], strict=True)) == EXPECTED | {6: "nan"}
    assert loss["nulls"] == 2
    assert not loss["timed"]
    assert log["series"]["validation/accuracy"]["values"] == ["0.5"] * 20
    assert log["damage"] == []
