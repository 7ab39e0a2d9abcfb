"""Verifiers of single completions. White space around an answer does not count."""

from __future__ import annotations

from collections.abc import Callable

Verifier = Callable[[str, str], float]
"""(completion, answer) -> reward in [0, 1]."""


class VerifierError(Exception):
    """The verifier could not judge this completion; it is counted and gets reward 0."""


class VerifierTimeout(VerifierError):  # noqa: N818  the name says what it is
    """The verifier took too long over this completion."""


class RewardError(ArithmeticError, ValueError):
    """A verifier gave something that is no reward; the run ends."""


def judge(verifier: Verifier, completion: str, answer: str) -> float:
    """Ask a verifier.

    Raises:
        VerifierError: it could not judge, or raised anything else: then the message names it and the error.
        RewardError: it gave something else than a number between 0 and 1.
    """
    try:
        reward = verifier(completion, answer)
    except VerifierError:
        raise
    except Exception as error:
        words = " ".join(str(error).split())
        raise VerifierError(f"{verifier_name(verifier)} raised {type(error).__name__}: {words}") from error
    try:
        value = float(reward)
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"{verifier_name(verifier)} gave {reward!r}; a reward is a number between 0 and 1"
        ) from error
    if not 0.0 <= value <= 1.0:
        raise RewardError(
            f"{verifier_name(verifier)} gave {reward} for {completion!r}; rewards lie between 0 and 1"
        )
    return value


def verifier_name(verifier: Verifier) -> str:
    """Return the name of a verifier for messages, with its module where it is not built in."""
    named = verifier if hasattr(verifier, "__qualname__") else type(verifier)
    module, name = str(named.__module__), str(named.__qualname__)
    return name if module.startswith("refrl.") else f"{module}:{name}"


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
