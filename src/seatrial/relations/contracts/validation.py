"""Contract of a validation's scalars: several answers to each prompt, by data source.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from seatrial.relations.cases.case import Case


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers to one prompt."""

    source: str
    prompt: str
    scores: tuple[float, ...]
    texts: tuple[str, ...]
    """What a majority is of; equal texts have equal scores. Empty where a reward gives numbers alone."""


@dataclass(frozen=True, kw_only=True)
class ValidationCase(Case):
    """The answers of a validation."""

    answers: tuple[Answers, ...]

    def smaller(self) -> Iterator[ValidationCase]:
        """Yield the case without one prompt."""
        for drop in range(len(self.answers) if len(self.answers) > 1 else 0):
            yield replace(self, answers=(*self.answers[:drop], *self.answers[drop + 1 :]))


@runtime_checkable
class ValidationMetrics(Protocol):
    """Scalars of a validation."""

    validation_draws: int
    """Samples by which an expectation is estimated."""

    def validation_metrics(self, answers: Sequence[Answers]) -> Mapping[str, Mapping[str, float]]:
        """Return scalars by source and name, each a mean over the prompts of the source that have N answers.

        `mean@N` and `std@N` (which divides by N) are of a prompt's N scores; `best@n/mean`, `worst@n/mean` and
        `maj@n/mean` the expected largest score, smallest score, and score of the most frequent text, of n answers drawn
        with replacement; of texts as frequent as each other the first one drawn counts. Others may be among them.
        """
        ...
