"""A run of refrl that goes on from a checkpoint, held to the state that it was saved in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refrl.config import GRPORunConfig, SFTRunConfig
from refrl.training.session import Session
from seatrial.files import write_whole
from seatrial.guards import Guards
from seatrial.guards.guards import sample_weights
from seatrial.targets.reference.conversions import whole_state

SAVED_FILE = "guards_saved.json"
"""Beside the log: what the last checkpoints were made of, by step."""
KEPT = 8
"""Checkpoints that are remembered; older ones are removed by most configurations."""


class AsSaved:
    """Notes what is saved, and asks of a run that resumes whether all of it is back."""

    def __init__(self, config: GRPORunConfig | SFTRunConfig, guards: Guards) -> None:
        """Begin with nothing saved."""
        self._config, self._guards = config, guards

    def started(self, session: Session) -> None:
        """What a resumed run begins with is what was saved."""
        saved = _read(session.logger.directory).get(str(session.attempt.step))
        if not session.attempt.step or saved is None or session.world.size != 1:
            return
        now = self._state(session)
        wrong = sorted(name for name in saved.keys() | now.keys() if saved.get(name) != now.get(name))
        what = f"after step {session.attempt.step}: {wrong[:3]} are other than they were saved ({len(wrong)})"
        self._guards.hold("resumed as saved", not wrong, what, number=len(saved))

    def saved(self, session: Session, step: int) -> None:
        """A checkpoint has every weight that trains, and both moments of each that an update has reached."""
        if session.world.size != 1:
            return
        state = whole_state(session.policy)
        trained = session.policy.trained_weights()
        lost = [
            f"optimizer.{name}.{key}"
            for name in trained
            for key in ("exp_avg", "exp_avg_sq")
            if session.policy.version and f"optimizer.{name}.{key}" not in state
        ]
        lost += [name for name, weight in trained.items() if not _is_in(name, weight, state)]
        wrong = f"after step {step}: {lost[:3]} are not saved ({len(lost)})"
        self._guards.hold("checkpoint is whole", not lost, wrong, number=len(state))
        known = {**_read(session.logger.directory), str(step): self._state(session)}
        last = dict(sorted(known.items(), key=lambda item: int(item[0]))[-KEPT:])
        write_whole(session.logger.directory / SAVED_FILE, json.dumps(last) + "\n")

    def _state(self, session: Session) -> dict[str, str]:
        """Return digests of what a run goes on with."""
        sample = sample_weights(whole_state(session.policy))
        parts = torch.split(sample.elements_N.cpu(), list(sample.sizes.values()))
        found = {name: _digest(part) for name, part in zip(sample.sizes, parts, strict=True)}
        found["(weight version)"] = str(session.policy.version)
        if session.progress is None:
            found["(prompts drawn)"] = json.dumps(dict(session.prompts.state_dict()), sort_keys=True)
        return found


def _is_in(name: str, weight: Tensor, state: Mapping[str, Tensor]) -> bool:
    """Say whether a weight is one of the tensors that are saved, or a copy of the one of its name."""
    saved = state.get(f"model.{name}")
    if saved is not None and torch.equal(saved.to(weight.dtype), weight):
        return True
    return any(weight.data_ptr() == one.data_ptr() and weight.shape == one.shape for one in state.values())


def _digest(elements_N: Tensor) -> str:
    return hashlib.blake2b(elements_N.numpy().tobytes(), digest_size=8).hexdigest()


def _read(directory: Path) -> dict[str, dict[str, Any]]:
    path = directory / SAVED_FILE
    if not path.is_file():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found
