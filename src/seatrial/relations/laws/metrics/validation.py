"""R22.validation: scalars of a validation are their definitions, of each source and prompt by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from seatrial.relations.contracts.validation import Answers, ValidationCase
from seatrial.relations.law import Measure, Relation
from seatrial.relations.oracles.validation import expected, moments, of_all

NUM_ANSWERS = 5
SIZES = (2, NUM_ANSWERS)
ROUNDING = 1e-9
DEVIATIONS = 6.0
"""Of an estimate's standard error: one in a billion correct ones is farther off."""


def _case(stack: Any, seed: int, tidy: bool) -> ValidationCase:
    """Return prompts of three sources that differ in the number of prompts; of two when tidy."""
    rng = np.random.default_rng([seed, 22])
    answers = []
    for source, num_prompts in [("one", 3)] if tidy else [("one", 3), ("other", 2)]:
        for prompt in range(num_prompts):
            places = [int(place) for place in rng.integers(0, 3, size=NUM_ANSWERS)]
            scores = [float(score) for score in rng.permutation([0.0, 0.25, 1.0])]
            answers.append(
                Answers(
                    source=source,
                    # Sources may have prompts of one name.
                    prompt=f"prompt {prompt}",
                    scores=tuple(scores[place] for place in places),
                    texts=tuple(f"answer {place}" for place in places),
                )
            )
    # Most answers are wrong, each in its own way, so that the right one is the most frequent.
    voted = [int(place) for place in rng.permutation([0, 1, 2, 3, 3])]
    answers.append(
        Answers(
            source="differently wrong",
            prompt="prompt 0",
            scores=tuple(float(place == 3) for place in voted),
            texts=tuple(f"answer {place}" for place in voted),
        )
    )
    return ValidationCase(answers=tuple(answers))


VALIDATION = Relation(
    id="R22.validation",
    name="validation-scalars-are-their-definitions",
    component="validation_metrics",
    statement="Means, deviations, best, worst and majority of several answers are those of each prompt, by source.",
    cost="CPU, milliseconds",
    cases=_case,
)


def _by_source(case: ValidationCase) -> Iterator[tuple[str, list[Answers]]]:
    for source in dict.fromkeys(one.source for one in case.answers):
        yield source, [one for one in case.answers if one.source == source]


@VALIDATION.law("means and deviations", "answers of two prompts or sources in one pool, another divisor")
@VALIDATION.law(
    "means and deviations of scores alone",
    "scores that are logged only where a reward gives more than a number",
    without_texts=True,
)
def moments_are_of_each_prompt(stack: Any, case: ValidationCase, without_texts: bool = False) -> Measure:
    """Compare the mean and the deviation of each source with those of its prompts."""
    answers = [replace(one, texts=()) for one in case.answers] if without_texts else case.answers
    given = stack.validation_metrics(answers)
    found = []
    for source, prompts in _by_source(case):
        for place, name in enumerate((f"mean@{NUM_ANSWERS}", f"std@{NUM_ANSWERS}")):
            right = math.fsum(moments(one)[place] for one in prompts) / len(prompts)
            value = given.get(source, {}).get(name, math.nan)
            where = f"{name} of source {source}: {value:.6g}, {right:.6g} is due"
            found.append((name, abs(value - right), where))
    return Measure.largest_of_each(found, 1e-6, "scalars of a validation against their definitions")


def draws_are_as_expected(stack: Any, case: ValidationCase, statistics: Sequence[str]) -> Measure:
    """Compare estimates with the exact expectation, in standard errors.

    That of all answers of a prompt may also be of the answers themselves, without draws.
    """
    given = stack.validation_metrics(case.answers)
    found = []
    for source, prompts in _by_source(case):
        for statistic in statistics:
            for size in SIZES:
                exact = [expected(one, statistic, size) for one in prompts]
                right = math.fsum(mean for mean, _ in exact) / len(exact)
                error = math.fsum(deviation for _, deviation in exact) / len(exact)
                value = given.get(source, {}).get(f"{statistic}@{size}/mean", math.nan)
                scale = max(error / math.sqrt(stack.validation_draws), 1e-9)
                whole = math.fsum(of_all(one, statistic) for one in prompts) / len(prompts)
                if size == NUM_ANSWERS and abs(value - whole) <= ROUNDING:
                    right = value
                name = f"{statistic}@{size}/mean"
                where = f"{name} of source {source}: {value:.6g}, {right:.6g} is expected"
                found.append((name, abs(value - right) / scale, where))
    return Measure.largest_of_each(
        found, DEVIATIONS, "estimates against their expectation, in standard errors"
    )


for what, statistics, suspects in (
    ("best and worst", ("best", "worst"), "answers drawn without replacement, best and worst exchanged"),
    (
        "majority",
        ("maj",),
        "the score of another answer than the most frequent one's, votes of several prompts or for scores, not answers",
    ),
):
    VALIDATION.law(what, suspects, statistics=statistics)(draws_are_as_expected)
