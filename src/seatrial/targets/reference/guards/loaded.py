"""A run of refrl held to what it begins with: weights as they were stored, and float32 copies of narrow ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from refrl.config import GRPORunConfig, SFTRunConfig
from refrl.policy.tensors import whole
from refrl.training.session import Session
from seatrial.guards import Guards
from seatrial.guards.guards import sample_weights
from seatrial.targets.reference.guards.optimizer import masters_of

LOOKED_AT = 12
"""Tensors read from a file, spread over its names: what is done to weights while they are loaded is done to all."""


def hold_loaded(session: Session, config: GRPORunConfig | SFTRunConfig, guards: Guards) -> None:
    """Weights that train begin as they are in the files; a narrow one has a float32 copy, which is not rounded.

    What goes on from a checkpoint begins with copies that round to the weights themselves.
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
        right = _in_files(Path(config.policy.model_name), begun)
    here, there = sample_weights({name: begun[name] for name in right}), sample_weights(right)
    wrong = here.differing(there)
    what = f"{wrong[:3]} do not begin as they were stored ({len(wrong)} of {len(right)} looked at)"
    guards.hold("weights as stored", not wrong, what, number=len(right))


def _in_files(folder: Path, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return some tensors of a model's files that have a name and shape of `wanted`; none where it is elsewhere."""
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = sorted(name for name in file.keys() if name in wanted)  # noqa: SIM118
            for name in names[:: max(1, len(names) // LOOKED_AT)]:
                tensor = file.get_tensor(name)
                if tensor.shape == wanted[name].shape:
                    found[name] = tensor
    return found
