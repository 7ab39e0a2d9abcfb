"""Checks what a run of refrl loads and saves: stored weights, float32 copies, whole checkpoints, a resumed state."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from refrl.policy.tensors import whole
from refrl.training.session import Session
from seatrial.files import write_whole
from seatrial.guards import Guards
from seatrial.guards.guards import sample_weights
from seatrial.targets.reference.conversions import whole_state
from seatrial.targets.reference.guards.base import RunConfig
from seatrial.targets.reference.guards.optimizer import masters_of

NUM_READ = 12
"""Tensors read from a file, spread over its names: what is done to weights while they are loaded is done to all."""
SAVED_FILE = "guards_saved.json"
"""In the log's folder: what the last checkpoints were made of, by step."""
NUM_KEPT = 8
"""Checkpoints that are remembered; older ones are removed by most configurations."""


def check_loaded(session: Session, config: RunConfig, guards: Guards) -> None:
    """Check that weights begin as they are stored, and that each narrow one has a float32 copy that is not rounded.

    A run that resumes from a checkpoint begins with copies that round to the weights themselves.
    """
    if session.world.size != 1:
        return
    live = {name: whole(weight.detach()) for name, weight in session.policy.trained_weights().items()}
    masters = masters_of(session)
    narrow = [name for name, weight in live.items() if weight.dtype in (torch.bfloat16, torch.float16)]
    lost = [name for name in narrow if name not in masters]
    guards.hold("float32 copies", not lost, f"{lost[:3]} train without one ({len(lost)})", number=len(narrow))
    begun = {**live, **masters}
    if session.attempt.step:
        right: Mapping[str, Tensor] = {name: live[name] for name in masters}
    else:
        right = _stored(Path(config.policy.model_name), begun)
    here, there = sample_weights({name: begun[name] for name in right}), sample_weights(right)
    wrong = here.differing(there)
    what = f"{wrong[:3]} do not begin as they were stored ({len(wrong)} of {len(right)} looked at)"
    guards.hold("weights as stored", not wrong, what, number=len(right))


class CheckpointGuard:
    """Records what is saved, and checks that a resumed run has all of it."""

    def __init__(self, guards: Guards) -> None:
        """Begin."""
        self._guards = guards

    def started(self, session: Session) -> None:
        """Check that a resumed run begins with what was saved."""
        saved = _read(session.logger.directory).get(str(session.attempt.step))
        if not session.attempt.step or saved is None or session.world.size != 1:
            return
        now = _state(session)
        wrong = sorted(name for name in saved.keys() | now.keys() if saved.get(name) != now.get(name))
        what = f"after step {session.attempt.step}: {wrong[:3]} are other than they were saved ({len(wrong)})"
        self._guards.hold("resumed as saved", not wrong, what, number=len(saved))

    def saved(self, session: Session, step: int) -> None:
        """Check that a checkpoint has every trained weight, and both moments of each that an update has reached."""
        if session.world.size != 1:
            return
        state, trained = whole_state(session.policy), session.policy.trained_weights()
        moments = [f"optimizer.{name}.{key}" for name in trained for key in ("exp_avg", "exp_avg_sq")]
        lost = [name for name in moments if session.policy.version and name not in state]
        lost += [name for name, weight in trained.items() if not _is_in(name, weight, state)]
        wrong = f"after step {step}: {lost[:3]} are not saved ({len(lost)})"
        self._guards.hold("checkpoint is whole", not lost, wrong, number=len(state))
        known = {**_read(session.logger.directory), str(step): _state(session)}
        last = dict(sorted(known.items(), key=lambda item: int(item[0]))[-NUM_KEPT:])
        write_whole(session.logger.directory / SAVED_FILE, json.dumps(last) + "\n")


def _stored(folder: Path, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return some tensors of a model's files that have a name and shape of `wanted`; none if it has no files."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = sorted(name for name in file.keys() if name in wanted)  # noqa: SIM118
            for name in names[:: max(1, len(names) // NUM_READ)]:
                tensor = file.get_tensor(name)
                if tensor.shape == wanted[name].shape:
                    found[name] = tensor
    return found


def _state(session: Session) -> dict[str, str]:
    """Return digests of what a run resumes with."""
    sample = sample_weights(whole_state(session.policy))
    parts = torch.split(sample.elements_N.cpu(), list(sample.sizes.values()))
    found = {
        name: hashlib.blake2b(part.numpy().tobytes(), digest_size=8).hexdigest()
        for name, part in zip(sample.sizes, parts, strict=True)
    }
    found["(weight version)"] = str(session.policy.version)
    if session.progress is None:
        found["(prompts drawn)"] = json.dumps(dict(session.prompts.state_dict()), sort_keys=True)
    return found


def _is_in(name: str, weight: Tensor, state: Mapping[str, Tensor]) -> bool:
    """Return whether a weight is one of the tensors that are saved, or equal to the one of its name."""
    saved = state.get(f"model.{name}")
    if saved is not None and torch.equal(saved.to(weight.dtype), weight):
        return True
    return any(weight.data_ptr() == one.data_ptr() and weight.shape == one.shape for one in state.values())


def _read(directory: Path) -> dict[str, dict[str, Any]]:
    path = directory / SAVED_FILE
    found: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found
