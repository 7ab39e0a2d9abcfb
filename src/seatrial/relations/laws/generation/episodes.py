"""R19 of several turns at once: what the environment hears, what calls draw, and what is judged."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.episodes import EpisodesRecord
from seatrial.relations.law import Measure, Relation


@dataclass(frozen=True, kw_only=True)
class EpisodesCase(Case):
    """Turns of each row, and what is said between them."""

    turns: tuple[tuple[str, ...], ...]
    words: tuple[tuple[str, ...], ...]

    def smaller(self) -> Iterator[EpisodesCase]:
        """Yield one row fewer."""
        if len(self.turns) > 2:
            yield replace(self, turns=self.turns[1:], words=self.words[1:])

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values."""
        return {"turns": self.turns, "words": self.words}

    def record(self, stack: Any) -> EpisodesRecord:
        """Return what was seen."""
        found: EpisodesRecord = stack.episodes(self.turns, self.words)
        return found


def _make(stack: Any, seed: int, tidy: bool) -> EpisodesCase:
    """Return rows of three turns of unequal lengths, and one that ends after its first."""
    stream = random.Random(seed)
    letters = "abcdefgh"
    rows = [
        [letters[row] * (2 if tidy else stream.randint(1, 5)) + str(turn) for turn in range(3)]
        for row in range(4)
    ]
    rows.append(["z"])
    return EpisodesCase(
        turns=tuple(map(tuple, rows)),
        words=tuple(tuple(f"={row}{turn};" for turn in range(len(own) - 1)) for row, own in enumerate(rows)),
    )


EPISODES = Relation(
    id="R19.episodes",
    name="episodes-are-heard-drawn-and-judged-apart",
    component="episodes",
    statement="An environment hears the turns so far, every call draws its own numbers, the last turn is judged.",
    catalogue="SB043 SB132",
    cost="CPU, milliseconds",
    cases=_make,
)


@EPISODES.law("the environment hears turns", "the whole episode, with the environment's words, as a turn")
def _heard(stack: Any, case: EpisodesCase) -> Measure:
    """Each time the turns so far, each by itself and without the environment's own words."""
    wrong = []
    for row, (received, turns) in enumerate(zip(case.record(stack).received, case.turns, strict=True)):
        for number, given in enumerate(received, 1):
            if tuple(given) != turns[:number]:
                wrong.append(f"row {row}, time {number}: {list(given)} for {list(turns[:number])}")
        if len(received) < len(turns) - 1:
            wrong.append(f"row {row}: asked {len(received)} times after {len(turns)} turns")
    return Measure.count(wrong, "times that the environment was not given the turns so far")


@EPISODES.law("every call draws its own", "one stream for rows of all lengths, or for all turns")
def _streams(stack: Any, case: EpisodesCase) -> Measure:
    streams = case.record(stack).streams
    twice = sorted({stream for stream in streams if streams.count(stream) > 1})
    return Measure.count(
        [f"stream {stream}" for stream in twice], "random streams that two calls of the engine share"
    )


@EPISODES.law("the last turn is judged", "answers that the environment gave itself")
def _judged(stack: Any, case: EpisodesCase) -> Measure:
    judged = case.record(stack).judged
    wrong = [
        f"row {row}: {text!r} for {turns[-1]!r}"
        for row, (text, turns) in enumerate(zip(judged, case.turns, strict=True))
        if text != turns[-1]
    ]
    return Measure.count(wrong, "rows judged by other words than their last turn")
