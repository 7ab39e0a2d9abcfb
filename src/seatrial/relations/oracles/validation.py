"""Exact values of a validation's scalars: every way to draw answers with replacement is counted."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

from seatrial.relations.contracts.validation import Answers

Draw = Sequence[tuple[float, str]]
"""Score and text of each answer that is drawn."""


def _most_frequent(draw: Draw) -> float:
    """Return the score of the text that is drawn most often; of several the first."""
    (text, _), *_ = Counter(text for _, text in draw).most_common(1)
    return next(score for score, own in draw if own == text)


OF_DRAWS: dict[str, Callable[[Draw], float]] = {
    "best": lambda draw: max(score for score, _ in draw),
    "worst": lambda draw: min(score for score, _ in draw),
    "maj": _most_frequent,
}


def expected(answers: Answers, statistic: str, size: int) -> tuple[float, float]:
    """Return expectation and standard deviation of a statistic of so many answers, drawn with replacement."""
    pairs = list(zip(answers.scores, answers.texts, strict=True))
    values = [OF_DRAWS[statistic](draw) for draw in itertools.product(pairs, repeat=size)]
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def of_all(answers: Answers, statistic: str) -> float:
    """Return a statistic of all answers, each of them once."""
    return OF_DRAWS[statistic](list(zip(answers.scores, answers.texts, strict=True)))


def moments(answers: Answers) -> tuple[float, float]:
    """Return the mean of the scores, and their standard deviation, which divides by their number."""
    mean = math.fsum(answers.scores) / len(answers.scores)
    return mean, math.sqrt(math.fsum((score - mean) ** 2 for score in answers.scores) / len(answers.scores))
