"""Runs of GRPO whose rollouts go through a store of a Ray cluster; run by test_data_plane.py."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from refrl.config import GRPORunConfig, load_config
from refrl.data_plane import opened_data_plane
from refrl.errors import TrainingError
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.recipes import FOLDER
from refrl.training.grpo import run_grpo
from refrl.training.session import Observer, Session, TrainedStep
from seatrial.targets.reference.data_plane.ray import start_ray

IMPLEMENTATION = os.environ["IMPLEMENTATION"]
ASYNC = ("grpo.async_grpo.enabled=true", "policy.generation.colocated.enabled=false")
EVERY_LOOP = os.environ.get("EVERY_LOOP") == "1"
AT_NIGHT = pytest.mark.skipif(
    not EVERY_LOOP, reason="a run whose store is killed takes a minute: for the night"
)
LOOPS = [pytest.param(ASYNC, id="async"), *([pytest.param((), id="sync")] if EVERY_LOOP else [])]


@pytest.fixture
def configure(tmp_path: Path) -> Callable[..., GRPORunConfig]:
    """Return a function that gives the configuration of a short run under a name."""
    start_ray()
    make_model(TinyModelSpec(), tmp_path / "model")

    def configure(name: str, *words: str) -> GRPORunConfig:
        places = (
            f"policy.model_name={tmp_path / 'model'}",
            f"logger.log_dir={tmp_path / name / 'logs'}",
            f"checkpointing.checkpoint_dir={tmp_path / name / 'checkpoints'}",
            "grpo.val_at_start=false",
            "grpo.val_at_end=false",
        )
        return load_config(GRPORunConfig, FOLDER / "grpo-smoke.yaml", [*places, *words])

    return configure


def rows(config: GRPORunConfig) -> list[Any]:
    """Return every row that a run trained on."""
    files = sorted(Path(config.logger.log_dir).glob("train_data_step*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_run_is_the_same_run_over_any_store(configure: Any, loop: tuple[str, ...]) -> None:
    """Bit for bit; and it ends only if nothing is left in the partition."""
    ours, local = configure("a", f"data_plane.implementation={IMPLEMENTATION}", *loop), configure("b", *loop)
    run_grpo(ours)
    run_grpo(local)
    assert rows(ours) == rows(local)
    assert len(rows(ours)) == 48


class Killer(Observer):
    """Kills a process of the store after the first step."""

    def __init__(self, part: str) -> None:
        """Choose it, by its name in `parts.json`."""
        self.part = part

    def trained(self, session: Session, step: TrainedStep) -> None:
        """Kill it."""
        if step.step == 1:
            parts = json.loads((session.logger.directory / "parts.json").read_text())
            os.kill(parts[self.part], signal.SIGKILL)


@AT_NIGHT
def test_a_control_that_dies_is_restored_and_the_run_goes_on(configure: Any, tmp_path: Path) -> None:
    """Every row is that of an undisturbed run."""
    words = (
        f"data_plane.implementation={IMPLEMENTATION}",
        "data_plane.timeout_s=120",
        f"data_plane.journal={tmp_path / 'journal.jsonl'}",
    )
    config, local = configure("a", *words), configure("b")
    run_grpo(config, Killer("refrl-data-plane"))
    run_grpo(local)
    assert rows(config) == rows(local)


CONTROL = ("refrl-data-plane", "'refrl-data-plane' is dead")
BYTES = {
    "ray": ("refrl-data-plane-blocks", "'refrl-data-plane-blocks' is dead"),
    "transfer_queue": ("TransferQueue", "TransferQueue (failed|did not answer)"),
}
"""What has the bytes of a store, and what is said when it is lost."""


@AT_NIGHT
@pytest.mark.parametrize(("part", "words"), [CONTROL, BYTES[IMPLEMENTATION]], ids=["control", "bytes"])
@pytest.mark.parametrize("loop", LOOPS)
def test_the_loss_of_a_part_ends_the_run_and_names_it_and_the_groups(
    configure: Any, loop: tuple[str, ...], part: str, words: str
) -> None:
    """The next run gets another cluster where there is one TransferQueue in each."""
    config = configure(
        "a",
        f"data_plane.implementation={IMPLEMENTATION}",
        "grpo.max_num_steps=50",
        *loop,
    )
    with pytest.raises(TrainingError, match=rf"{words}.*not trained on: [0-9, ]+$"):
        run_grpo(config, Killer(part))
    if IMPLEMENTATION == "transfer_queue":
        ray.shutdown()


def test_a_store_leaves_the_threads_of_torch_alone(configure: Any) -> None:
    """What trains beside a call, or after one, computes as it did."""
    before = torch.get_num_threads()
    torch.set_num_threads(before + 2)
    try:
        with opened_data_plane(
            configure(
                "a", f"data_plane.implementation={IMPLEMENTATION}", "data_plane.name=threads"
            ).data_plane
        ) as client:
            client.register_partition("p", ["x"], 4, ["train"])
            client.put_samples(["a"], "p", {"x": torch.ones(1, 3)}, [{}])
            client.get_samples(["a"], "p", ["x"])
        assert torch.get_num_threads() == before + 2
    finally:
        torch.set_num_threads(before)
