"""R19 for episodes of several turns: what the environment receives, the random streams, and what the reward judges."""

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
    """Turns of each row, and the environment's messages between them."""

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
        """Return what the environment, the engine and the reward received."""
        found: EpisodesRecord = stack.episodes(self.turns, self.words)
        return found


def _make(stack: Any, seed: int, tidy: bool) -> EpisodesCase:
    """Return rows with three turns of unequal lengths, and one with a single turn."""
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
    name="episodes-are-separate",
    component="episodes",
    statement="The environment receives the turns so far; each call has its own stream; the last turn is judged.",
    catalogue="SB043 SB132",
    cost="CPU, milliseconds",
    cases=_make,
)


@EPISODES.law(
    "the environment receives turns",
    "the whole episode, including the environment's messages, passed as a turn",
)
def environment_receives_turns(stack: Any, case: EpisodesCase) -> Measure:
    """Each call of the environment receives the turns so far, separately and without its own messages."""
    wrong = []
    for row, (received, turns) in enumerate(zip(case.record(stack).received, case.turns, strict=True)):
        for number, given in enumerate(received, 1):
            if tuple(given) != turns[:number]:
                wrong.append(f"row {row}, call {number}: {list(given)}, expected {list(turns[:number])}")
        if len(received) < len(turns) - 1:
            wrong.append(f"row {row}: {len(received)} calls for {len(turns)} turns")
    return Measure.count(wrong, "calls of the environment without the turns so far")


@EPISODES.law("every call has its own random stream", "one stream for rows of all lengths, or for all turns")
def every_call_has_its_own_stream(stack: Any, case: EpisodesCase) -> Measure:
    streams = case.record(stack).streams
    twice = sorted({stream for stream in streams if streams.count(stream) > 1})
    return Measure.count(
        [f"stream {stream}" for stream in twice], "random streams shared by two calls of the engine"
    )


@EPISODES.law("the last turn is judged", "the environment's own messages judged as answers")
def last_turn_is_judged(stack: Any, case: EpisodesCase) -> Measure:
    judged = case.record(stack).judged
    wrong = [
        f"row {row}: {text!r}, expected {turns[-1]!r}"
        for row, (text, turns) in enumerate(zip(judged, case.turns, strict=True))
        if text != turns[-1]
    ]
    return Measure.count(wrong, "rows judged by another text than their last turn")
