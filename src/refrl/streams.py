"""Random streams that depend on what they are for, and not on what was drawn before."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def random_stream(seed: int, purpose: str, step: int) -> torch.Generator:
    """Return a generator on the CPU for one purpose at one step.

    A validation between two steps, or a step that is repeated after a resume, does not move any other stream.
    """
    digest = hashlib.sha256(f"{seed}/{purpose}/{step}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def global_streams() -> dict[str, Any]:
    """Return the state of the random streams that everything in the process shares, as JSON values.

    Nothing of refrl draws from them; a verifier of the user's own may.
    """
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [str(kind), np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "torch": _hexadecimal(torch.get_rng_state()),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = _hexadecimal(torch.cuda.get_rng_state())
    return state


def restore_global_streams(state: Mapping[str, Any]) -> None:
    """Bring the streams to where `global_streams` saw them; those of a device that is not here are left out."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(_bytes(state["torch"]))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes(state["cuda"]))


def _hexadecimal(state: torch.Tensor) -> str:
    return str(state.cpu().numpy().tobytes().hex())


def _bytes(text: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
