"""R17: a verifier gives right and wrong answers the right reward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation
from seatrial.relations.not_served import NotServed
from seatrial.relations.worst import Worst


@dataclass(frozen=True, kw_only=True)
class VerifierCase(Case):
    """Right and wrong answers in a shuffled order."""

    order: tuple[int, ...]
    triples: tuple[tuple[Any, str, float], ...]

    def smaller(self) -> Iterator[VerifierCase]:
        """Yield halves, then the case without one answer: a verifier may take seconds for each."""
        half = len(self.order) // 2
        if half:
            yield replace(self, order=self.order[:half])
            yield replace(self, order=self.order[half:])
        for drop in range(len(self.order)):
            if len(self.order) > 2:
                yield replace(self, order=self.order[:drop] + self.order[drop + 1 :])

    def describe(self) -> Mapping[str, Any]:
        """Return the answers with the reward that is right."""
        return {"answers": [[str(part) for part in self.triples[index]] for index in self.order]}


def _make_answers(stack: Any, seed: int, tidy: bool) -> VerifierCase:
    """Return every answer, shuffled; when tidy the right answers alone, in their order."""
    triples = tuple(stack.reward_cases())
    if tidy:
        triples = tuple(triple for triple in triples if triple[2] == 1.0)
    order = np.arange(len(triples)) if tidy else np.random.default_rng(seed).permutation(len(triples))
    return VerifierCase(order=tuple(int(index) for index in order), triples=triples)


REWARD = Relation(
    id="R17.reward",
    name="verifier-is-right",
    component="reward",
    statement="Right and wrong answers get the right reward, in any order.",
    catalogue="SB068 SB071 SB075 SB076 SB077",
    cost="CPU, milliseconds to seconds",
    cases=_make_answers,
)


@REWARD.law(
    "reward of each answer",
    "rewards moved between rows, a parser that misses the answer, a failure turned into 0",
)
def verifier_is_right(stack: Any, case: VerifierCase) -> Measure:
    """Compare the reward of each answer with the known right one."""
    chosen = [case.triples[index] for index in case.order]
    given = stack.reward([problem for problem, _, _ in chosen], [completion for _, completion, _ in chosen])
    if len(given) != len(chosen):
        return Measure(
            error=float("inf"), bound=0, what=f"{len(given)} rewards for {len(chosen)} completions"
        )
    worst = Worst(place="every answer is right")
    for reward, (_, completion, right) in zip(given, chosen, strict=True):
        worst.add(abs(float(reward) - right), f"{reward} for {completion!r}, right is {right}")
    return Measure(error=worst.error, bound=1e-9, what=f"rewards of answers, {worst.place}")


@REWARD.law(
    "no verdict", "a comparison that fails and counts as a wrong completion, completion and answer exchanged"
)
def verifier_says_what_it_cannot_judge(stack: Any, case: VerifierCase) -> Measure:
    """Check that the verifier raises where it cannot judge; a stack says where in `unjudged_cases`."""
    unjudged = list(getattr(stack, "unjudged_cases", tuple)())
    if not unjudged:
        raise NotServed("the stack names no completion that its verifier cannot judge")
    wrong = []
    for problem, completion in unjudged:
        try:
            (given,) = stack.reward([problem], [completion])
        except Exception:  # noqa: BLE001  the stack chooses the type of its error
            continue
        wrong.append(f"{given} for {completion!r}")
    return Measure.count(wrong, "rewards of completions that cannot be judged")
