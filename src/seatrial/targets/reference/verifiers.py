"""A verifier of two rewards, so that those of some groups are all equal."""

from __future__ import annotations

from refrl.rewards.verifiers import byte_closeness

ENOUGH = 0.45
"""About what half of the conformance model's completions reach."""


def near_enough(completion: str, answer: str) -> float:
    """Return whether `byte_closeness` reaches `ENOUGH`, as 0 or 1."""
    return float(byte_closeness(completion, answer) >= ENOUGH)
