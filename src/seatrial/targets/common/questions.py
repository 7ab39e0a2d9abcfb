"""Prompts with one right answer, cut into splits that share none, for trial runs of stacks other than refrl."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from seatrial.targets.common.rewards import SCORES, answer_of

__all__ = ["SCORES", "Question", "answers", "questions"]

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


def answers(prompts: Sequence[str]) -> list[str]:
    """Return the right answers of these prompts, from their words."""
    return [answer_of(prompt) for prompt in prompts]
