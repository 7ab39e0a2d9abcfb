"""Rewards that read the form of a completion: the chosen letter, the format, the length."""

from __future__ import annotations

import re

from refrl.rewards.verifiers import VerifierError

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
