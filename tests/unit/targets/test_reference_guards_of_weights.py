"""Guards that hold what a run begins with to what is stored: the model's files, float32 copies of narrow weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from refrl.training.session import Observer, Observers, Session
from refrl.training.sft import run_sft
from seatrial.targets.reference.configuration import tuning_configuration
from seatrial.targets.reference.guards.observer import RecordingGuards
from seatrial.targets.reference.guards.optimizer import masters_of
from seatrial.targets.reference.runs.short import quiet


def rounded(session: Session) -> None:
    """Round the weights that train, as a model that was loaded in a narrower type."""
    for weight in (masters_of(session) or session.policy.trained_weights()).values():
        weight.data.copy_(weight.data.bfloat16())


def nothing(session: Session) -> None:
    """Leave the weights as they are."""


def seen(folder: Path, precision: str, change: Callable[[Session], None]) -> tuple[RecordingGuards, set[str]]:
    """Return the guards of a short run whose weights were changed before its first step, and what failed."""

    class Changed(Observer):
        def started(self, session: Session) -> None:
            with torch.no_grad():
                change(session)

    options = {"logger.log_dir": str(folder / "log"), "policy.precision": precision, "sft.max_num_steps": 1}
    config = tuning_configuration(options)
    guards = RecordingGuards(config)
    with quiet():
        run_sft(config, Observers([Changed(), guards]))
    return guards, {verdict.name.removeprefix("guard ") for verdict in guards.guards.failures}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_weights_begin_as_they_were_stored(tmp_path: Path, precision: str) -> None:
    """A sound run is asked about some tensors, and is silent."""
    guards, wrong = seen(tmp_path, precision, nothing)
    assert wrong == set()
    asked = [verdict for verdict in guards.guards.verdicts if verdict.name == "guard weights as stored"]
    assert asked[0].num_samples and asked[0].num_samples > 5


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_rounded_weights_are_seen(tmp_path: Path, precision: str) -> None:
    """Also where the copies alone are: the model's own weights have that type."""
    assert "weights as stored" in seen(tmp_path, precision, rounded)[1]
