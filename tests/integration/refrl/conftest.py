"""A tiny model on disk and a way to run refrl on it, in this process or in one of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from refrl.models.tiny import TinyModelSpec, make_model
from refrl.recipes import FOLDER

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = FOLDER


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a tiny Qwen3 model."""
    directory = tmp_path_factory.mktemp("models") / "qwen3"
    make_model(TinyModelSpec(), directory)
    return directory


@pytest.fixture
def overrides(tiny_model: Path, tmp_path: Path) -> Callable[[str], list[str]]:
    """Return a function that gives the overrides of a run under a name of its own."""
    return lambda name: [
        f"policy.model_name={tiny_model}",
        f"logger.log_dir={tmp_path / name / 'logs'}",
        f"checkpointing.checkpoint_dir={tmp_path / name / 'checkpoints'}",
        "cluster.num_threads=1",
    ]


@pytest.fixture(autouse=True)
def _threads() -> None:
    """Runs in this process set the number of threads for those after them: start each from the same."""
    torch.set_num_threads(1)


def command(*words: str) -> list[str]:
    """Return the command line of a refrl process."""
    return [sys.executable, "-m", "refrl", *words]


def start(*words: str) -> "subprocess.Popen[str]":
    """Start a refrl process in a group of its own."""
    return subprocess.Popen(
        command(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
