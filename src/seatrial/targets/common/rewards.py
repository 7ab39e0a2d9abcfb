"""Rewards of prompts such as `reverse abc=`, as functions that a stack's own reward option can name.

A trial copies this file into the data folder of a run as `seatrial_rewards.py`, so it needs nothing but Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_PROMPT = re.compile(r"reverse ([a-z]*)=")


def answer_of(prompt: str) -> str:
    """Return the right answer of a prompt, which may have a chat template around it."""
    found = _PROMPT.findall(prompt)
    return str(found[-1])[::-1] if found else ""


def share_right(completion: str, answer: str) -> float:
    """Return the share of characters that are right, of the longer of the two."""
    given = completion.strip()
    right = sum(one == other for one, other in zip(given, answer, strict=False))
    return right / max(len(given), len(answer))


def closeness(completion: str, answer: str) -> float:
    """Return how near the bytes are to the right ones, from 0 to 1: also a model that knows nothing gets some."""
    given, wanted = completion.strip().encode(), answer.encode()
    near = [1 - abs(one - other) / 255 for one, other in zip(given, wanted, strict=False)]
    return sum(near) / max(len(given), len(wanted))


SCORES: Mapping[str, Callable[[str, str], float]] = {
    "character_match": share_right,
    "byte_closeness": closeness,
}
"""How completions are scored, by the name under which the laws of a run's rows recompute rewards."""


def character_match(prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
    """Return the share of right characters of each completion."""
    return _scored(share_right, prompts, completions)


def byte_closeness(prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
    """Return how near the bytes of each completion are to the right ones."""
    return _scored(closeness, prompts, completions)


def _scored(
    score: Callable[[str, str], float], prompts: Sequence[Any], completions: Sequence[Any]
) -> list[float]:
    pairs = zip(prompts, completions, strict=True)
    return [score(_text(given), answer_of(_text(prompt))) for prompt, given in pairs]


def _text(value: Any) -> str:
    """Return a text; of messages the content of the last."""
    return str(value[-1]["content"]) if isinstance(value, list) else str(value)
