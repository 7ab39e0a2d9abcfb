"""Verifiers of single completions. White space around an answer does not count."""

from __future__ import annotations

import re
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


_CHOICES = (
    re.compile(r"\\boxed\{\s*(?:\\text\{)?\s*\(?([A-Z])\)?\s*\}?\s*\}"),
    re.compile(r"(?:answer|choice|option)\s*(?:is|:|=)*\s*[*_(\[]*([A-Z])\b(?!['’])", re.IGNORECASE),
    re.compile(r"^\s*[*_(\[]*([A-Za-z])[*_)\].:]*\s*$"),
)
"""Patterns that locate a choice, the most explicit first; the last match of a pattern counts."""


def multiple_choice(completion: str, answer: str) -> float:
    """Return 1 where the completion chooses the answer's letter, 0 where it chooses another or none.

    Read are `\\boxed{C}`, then `the answer is (C)`, then a completion that is the letter alone; letters in running
    text are not.

    Raises:
        VerifierError: the answer is not one letter.
    """
    wanted = answer.strip().strip("()").upper()
    if not re.fullmatch("[A-Z]", wanted):
        raise VerifierError(f"multiple_choice needs one letter as the answer, got {answer[:40]!r}")
    for pattern in _CHOICES:
        chosen = pattern.findall(completion)
        if chosen:
            return float(chosen[-1].upper() == wanted)
    return 0.0


def format_match(completion: str, answer: str) -> float:
    """Return 1 where the whole completion matches the answer, a regular expression (`.` matches line ends too).

    The expression is the configuration's: one that backtracks without end is not cut short.

    Raises:
        VerifierError: the answer is no regular expression.
    """
    try:
        pattern = re.compile(answer, re.DOTALL)
    except re.error as error:
        raise VerifierError(
            f"format_match needs a regular expression as the answer, got {answer[:80]!r}: {error}"
        ) from error
    return float(pattern.fullmatch(completion) is not None)


def soft_overlong_penalty(num_tokens: int, *, max_length: int, buffer: int) -> float:
    """Return what is added to the reward for length: 0 up to `max_length - buffer`, then falling to -1 at `max_length`.

    DAPO, arXiv 2503.14476, equation 13. Added to a reward in [0, 1] the sum is in [-1, 1].

    Raises:
        ValueError: the buffer is not between 1 and `max_length`, or the length is negative.
    """
    if not 1 <= buffer <= max_length or num_tokens < 0:
        raise ValueError(
            f"buffer={buffer} must lie between 1 and max_length={max_length}, and num_tokens={num_tokens} not below 0"
        )
    return -min(1.0, max(0, num_tokens - (max_length - buffer)) / buffer)
