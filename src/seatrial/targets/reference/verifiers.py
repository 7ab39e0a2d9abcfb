"""Verifiers of the laws' own: one of two rewards, so that those of some groups are all equal, and one that fails."""

from __future__ import annotations

from refrl.rewards.verifiers import VerifierError, byte_closeness
from seatrial.relations.contracts.left import unjudgeable

ENOUGH = 0.45
"""About what half of the conformance model's completions reach."""


def near_enough(completion: str, answer: str) -> float:
    """Return whether `byte_closeness` reaches `ENOUGH`, as 0 or 1."""
    return float(byte_closeness(completion, answer) >= ENOUGH)


def failing(completion: str, answer: str) -> float:
    """Return `byte_closeness`.

    Raises:
        VerifierError: the completion is `unjudgeable`.
    """
    if unjudgeable(completion):
        raise VerifierError("the sum of its bytes can be divided by 3")
    return byte_closeness(completion, answer)
