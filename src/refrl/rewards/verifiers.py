"""Verifiers of single completions. White space around an answer does not count."""

from __future__ import annotations

from collections.abc import Callable

Verifier = Callable[[str, str], float]
"""(completion, answer) -> reward in [0, 1]."""


class VerifierError(Exception):
    """The verifier could not judge this completion; it is counted and gets reward 0."""


class VerifierTimeout(VerifierError):  # noqa: N818  the name says what it is
    """The verifier took too long over this completion."""


def exact_match(completion: str, answer: str) -> float:
    """Return 1 for the answer and 0 for anything else."""
    return float(completion.strip() == answer)


def character_match(completion: str, answer: str) -> float:
    """Return the share of positions that hold the right character, over the longer of the two texts.

    It is 1 for the answer alone: what follows the answer costs as much as what is missing.
    """
    text = completion.strip()
    hits = sum(left == right for left, right in zip(text, answer, strict=False))
    longest = max(len(text), len(answer))
    return hits / longest if longest else 1.0


def byte_closeness(completion: str, answer: str) -> float:
    """Return how near each byte is to the answer's, 1 - |difference| / 255, averaged over the longer of the two.

    Even the noise of an untrained model differs in it: there is a gradient from the first step.
    """
    left, right = completion.strip().encode(), answer.encode()
    nearness = sum(1 - abs(one - other) / 255 for one, other in zip(left, right, strict=False))
    longest = max(len(left), len(right))
    return nearness / longest if longest else 1.0


def integer_match(completion: str, answer: str) -> float:
    """Return 1 where the completion is the answer's integer, however it is written (`07` is 7).

    Raises:
        VerifierError: the answer is not an integer.
    """
    try:
        wanted = int(answer)
    except ValueError as error:
        raise VerifierError(f"integer_match needs an integer as the answer, got {answer!r}") from error
    text = completion.strip()
    return float(text.isascii() and text.lstrip("+-").isdigit() and _as_int(text) == wanted)


def _as_int(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
