"""Checks what checkpoints say of what they cannot hold: the data, the frozen weights and the global random streams."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refrl.training.session import Session
from seatrial.guards import Guards
from seatrial.targets.reference.guards.base import RunConfig

INFO = "training_info.json"
TORCH_BYTES = 5000
"""Of the state of torch's stream: what follows is a cached normal number and memory that nothing sets."""


class SavedFactsGuard:
    """Compares `training_info.json` of each checkpoint with what the run had when it was saved."""

    def __init__(self, config: RunConfig, guards: Guards) -> None:
        """Begin with nothing saved."""
        self._root, self._guards = Path(config.checkpointing.checkpoint_dir), guards
        self._has_adapters = config.policy.lora_cfg.enabled
        self._wanted: dict[int, Mapping[str, Any]] = {}
        self._data = ""
        self._frozen: str | None = None

    def started(self, session: Session) -> None:
        """Compute the digest of the training examples in their order: ids, prompts, answers, media and solutions."""
        if session.world.size != 1:
            return
        total = hashlib.sha256()
        for one in session.train_examples:
            total.update(json.dumps([one.prompt_id, one.prompt, one.answer]).encode())
            total.update((one.media or "").encode())
            if one.solution is not None:
                total.update(json.dumps({"solution": one.solution}).encode())
        self._data = total.hexdigest()

    def saved(self, session: Session, step: int) -> None:
        """Record what the checkpoint of this step should say; the digest of frozen weights is made once."""
        if session.world.size != 1:
            return
        if self._frozen is None:
            self._frozen = (
                "" if self._has_adapters else _digest(dict(session.policy.reference_weights() or ()))
            )
        self._wanted[step] = {"data": self._data, "streams": _streams(), "frozen": self._frozen}

    def ended(self, session: Session) -> None:
        """Compare what is saved with what was recorded; checkpoints that were removed since are left out."""
        if session.world.size != 1:
            return
        session.checkpointer.wait()
        held = {}
        for step in self._wanted:
            with suppress(FileNotFoundError):
                held[step] = json.loads((self._root / f"step_{step}" / INFO).read_text("utf-8"))
        wrong = [
            f"step {step}: {what}" for step, said in held.items() for what in self._differing(step, said)
        ]
        self._guards.hold("facts of checkpoints", not wrong, "; ".join(wrong[:3]), number=len(held))

    def _differing(self, step: int, said: Mapping[str, Any]) -> Iterator[str]:
        wanted = self._wanted[step]
        if said["data"] != wanted["data"]:
            yield f"the digest of the data is {said['data'][:12]}, the examples give {wanted['data'][:12]}"
        frozen = said["policy"].get("frozen", "")
        if wanted["frozen"] and frozen != wanted["frozen"]:
            yield f"the digest of frozen weights is {frozen[:12]}, they give {wanted['frozen'][:12]}"
        (stream,) = said["streams"] or [{}]
        yield from (
            f"the random stream of {name} is not as it was"
            for name, state in wanted["streams"].items()
            if stream.get(name, "")[: len(state)] != state
        )


def _digest(reference: Mapping[str, Tensor]) -> str:
    """Return the digest of a frozen reference: its tensors' names, types, shapes and bytes, in the order of names."""
    total = hashlib.sha256()
    for name, tensor in sorted(reference.items()):
        total.update(f"reference {name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _streams() -> dict[str, Any]:
    """Return the states of the global random streams as JSON has them."""
    version, words, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(words), gauss],
        "numpy": [str(kind), np.asarray(keys).tolist(), int(place), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state().numpy().tobytes()[:TORCH_BYTES].hex(),
    }
