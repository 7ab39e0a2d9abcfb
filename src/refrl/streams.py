"""Random streams that depend on what they are for, and not on what was drawn before."""

from __future__ import annotations

import hashlib

import torch


def random_stream(seed: int, purpose: str, step: int) -> torch.Generator:
    """Return a generator on the CPU for one purpose at one step.

    A validation between two steps, or a step that is repeated after a resume, does not move any other stream.
    """
    digest = hashlib.sha256(f"{seed}/{purpose}/{step}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
