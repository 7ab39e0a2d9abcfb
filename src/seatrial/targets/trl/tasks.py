"""Prompts with one right answer for TRL's trial runs, cut into splits that share none, and how answers are scored."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

ALPHABET, LENGTH = "abcdefgh", 3
NUM_TRAIN, NUM_HELD_OUT = 256, 128


@dataclass(frozen=True, kw_only=True)
class Question:
    """A prompt and its right answer."""

    prompt: str
    answer: str


def questions(seed: int) -> tuple[list[Question], list[Question]]:
    """Return the prompts to train on and those that are held out."""
    words = ["".join(letters) for letters in itertools.product(ALPHABET, repeat=LENGTH)]
    random.Random(seed).shuffle(words)
    made = [Question(prompt=f"reverse {word}=", answer=word[::-1]) for word in words]
    return made[:NUM_TRAIN], made[NUM_TRAIN : NUM_TRAIN + NUM_HELD_OUT]


def share_right(completion: str, answer: str) -> float:
    """Return the share of characters that are right, of the longer of the two."""
    said = completion.strip()
    right = sum(one == other for one, other in zip(said, answer, strict=False))
    return right / max(len(said), len(answer))


def answers(prompts: Sequence[str]) -> list[str]:
    """Return the right answers of these prompts, worked out from their words."""
    return [prompt.removeprefix("reverse ").removesuffix("=")[::-1] for prompt in prompts]


def closeness(completion: str, answer: str) -> float:
    """Return how near the bytes are to the right ones, from 0 to 1: also a model that knows nothing gets some."""
    said, wanted = completion.strip().encode(), answer.encode()
    near = [1 - abs(one - other) / 255 for one, other in zip(said, wanted, strict=False)]
    return sum(near) / max(len(said), len(wanted))


SCORES: Mapping[str, Callable[[str, str], float]] = {
    "character_match": share_right,
    "byte_closeness": closeness,
}
"""How completions are scored, by the name that the ledger's laws recompute rewards under."""
