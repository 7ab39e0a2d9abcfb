"""R22.validation: expectations that were worked out by hand, and a stack that breaks each law."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from seatrial.relations.contracts.validation import Answers
from seatrial.relations.engine import run_relation
from seatrial.relations.oracles.validation import expected, moments
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

TWO = Answers(source="s", prompt="p", scores=(0.0, 1.0), texts=("a", "b"))
THREE = Answers(source="s", prompt="p", scores=(0.0, 0.0, 1.0), texts=("a", "a", "b"))


@pytest.mark.parametrize(
    ("answers", "statistic", "size", "mean"),
    [
        (TWO, "best", 2, 3 / 4),
        (TWO, "worst", 2, 1 / 4),
        (TWO, "maj", 2, 1 / 2),
        (THREE, "best", 2, 5 / 9),
        (THREE, "maj", 3, 1 / 27 + 6 / 27),
    ],
)
def test_expectations(answers: Answers, statistic: str, size: int, mean: float) -> None:
    """Of two draws of two answers three in four have the better one; of 27 draws of three 7 have a majority of b."""
    assert expected(answers, statistic, size)[0] == pytest.approx(mean)


def test_moments() -> None:
    """The deviation divides by the number of answers."""
    assert moments(TWO) == pytest.approx((0.5, 0.5))


class Stack:
    """A validation by plain sampling, but for a fault."""

    validation_draws = 1000

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def validation_metrics(self, answers: Sequence[Answers]) -> Mapping[str, Mapping[str, float]]:
        """Return the mean over the prompts of each source."""
        if self.fault == "one pool":
            first = answers[0].source
            answers = [
                Answers(source=first, prompt=one.prompt, scores=one.scores, texts=one.texts)
                for one in answers
            ]
        found: dict[str, dict[str, float]] = {}
        for source in {one.source for one in answers}:
            of_prompts = [self._of_prompt(one) for one in answers if one.source == source]
            found[source] = {
                name: sum(one[name] for one in of_prompts) / len(of_prompts) for name in of_prompts[0]
            }
        return found

    def _of_prompt(self, answers: Answers) -> dict[str, float]:
        draw = random.Random(answers.prompt)
        if self.fault == "numbers are lost" and not answers.texts:
            return {}
        pairs = list(zip(answers.scores, answers.texts or map(str, answers.scores), strict=True))
        mean, deviation = moments(answers)
        found = {"mean@5": mean, "std@5": deviation}
        for size in (2, 5):
            draws = [
                draw.sample(pairs, size) if self.fault == "no replacement" else draw.choices(pairs, k=size)
                for _ in range(self.validation_draws)
            ]
            found[f"best@{size}/mean"] = sum(max(score for score, _ in own) for own in draws) / len(draws)
            found[f"worst@{size}/mean"] = sum(min(score for score, _ in own) for own in draws) / len(draws)
            found[f"maj@{size}/mean"] = sum(self._voted(own) for own in draws) / len(draws)
        return found

    def _voted(self, draw: Sequence[tuple[float, str]]) -> float:
        if self.fault == "votes for scores":
            return Counter(score for score, _ in draw).most_common(1)[0][0]
        (text, _), *_ = Counter(text for _, text in draw).most_common(1)
        wanted = [score for score, own in draw if (own != text) == (self.fault == "minority")]
        return wanted[0] if wanted else draw[0][0]


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("", ""),
        ("one pool", "means and deviations"),
        ("no replacement", "best and worst"),
        ("minority", "majority"),
        ("votes for scores", "majority"),
        ("numbers are lost", "means and deviations of scores alone"),
    ],
)
def test_laws(fault: str, law: str) -> None:
    """Each fault breaks its law; the stack without one breaks none."""
    (relation,) = select(["R22.validation"])
    verdict = run_relation(relation, Stack(fault), seeds=[0, 1], shrink_seconds=0)
    assert verdict.outcome is (Outcome.FAIL if fault else Outcome.PASS), verdict.reason
    assert law in [*verdict.details.get("laws_broken", []), ""]
