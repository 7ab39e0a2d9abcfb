"""R31.reward_calls: a reward function is given each row's own facts, and its results stay with the row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

from seatrial.relations.contracts.utilities import Rollout
from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.padded_episodes import episodes
from seatrial.relations.laws.utilities.plain import FLOAT32, Arguments, Plain, add_laws, relation_of

REWARD_CALLS = relation_of(
    "reward_calls",
    "reward-functions-get-each-rows-own-facts",
    "A reward function is given the text, the right answer and the facts of each row; what it returns stays with it.",
)
Kind = Literal["number", "dictionary", "awaited", "either"]
"""What the function returns; one that is awaited returns a number, and `either` depends on the row's source."""


SOURCES = ("made/a", "made/longer")


class ScoredRow(NamedTuple):
    """A row before it is scored."""

    source: str
    prompt: str
    answer: str
    right: str
    extra: dict[str, Any]
    """Of the data set."""
    turns: int
    earlier: dict[str, float]
    """Scores that the rollout gave."""


class RewardCall(NamedTuple):
    """What the function was given for one row."""

    source: str
    answer: str
    right: str
    extra: dict[str, Any]


def scored(call: RewardCall) -> float:
    """Return the score of a call: another one for each text, answer and row."""
    index: int = call.extra["index"]
    return 0.25 * len(call.answer) + 0.5 * index + (call.right in call.answer) - len(call.source)


def returned(call: RewardCall, kind: Kind) -> Any:
    """Return what the function returns."""
    score = scored(call)
    if kind == "either" and call.source == SOURCES[1]:
        return {"score": score, "acc": float(call.right in call.answer)}
    if kind != "dictionary":
        return score
    return {"score": score, "found": call.answer[-3:], "is_right": call.right in call.answer}


def call_of(row: ScoredRow) -> RewardCall:
    """Return the call of a row."""
    return RewardCall(row.source, row.answer, row.right, dict(row.extra))


def _rows(case: Numbers) -> list[ScoredRow]:
    """Return rows of unequal lengths, of two sources in turn; some answers are right."""
    lengths = torch.randint(1, 12, (6,), generator=case.generator()).tolist()
    return [
        ScoredRow(
            source=SOURCES[number % 2],
            prompt=f"what is {number}? {'so ' * number}",
            answer=f"{'it is ' * length}{number if number % 3 else 'unknown'}",
            right=str(number),
            extra={"index": number, "level": number / 2},
            turns=number + 2,
            earlier={"style": number / 4},
        )
        for number, length in enumerate(lengths)
    ]


def _cases(case: Numbers) -> Iterable[Arguments]:
    rows = _rows(case)
    for kind in ("number", "dictionary"):
        yield rows, kind
        yield rows[::-1], kind
        yield rows[2:3], kind
    yield rows, "awaited"


def _named(case: Numbers) -> Iterable[Arguments]:
    return [(rows, kind) for rows, kind in _cases(case) if kind == "dictionary"]


def calls_of(rows: Sequence[ScoredRow], kind: Kind) -> list[RewardCall]:
    """Return the calls, in the order of the rows."""
    return [call_of(row) for row in rows]


def rewards_of(rows: Sequence[ScoredRow], kind: Kind) -> list[float]:
    """Return the reward at the last token of each row."""
    return [scored(call_of(row)) for row in rows]


def extras_of(rows: Sequence[ScoredRow], kind: Kind) -> dict[str, list[Any]]:
    """Return what the function returned of each row by name."""
    found = [returned(call_of(row), kind) for row in rows]
    return {name: [one[name] for one in found] for name in found[0]}


def _of_numbers(case: Numbers) -> Iterable[Arguments]:
    rows = _rows(case)
    kinds: tuple[Kind, ...] = ("number", "either")
    return [(given, kind) for kind in kinds for given in (rows, rows[::-1], rows[1:])]


def accuracies_of(rows: Sequence[ScoredRow], kind: Kind) -> list[float]:
    """Return the accuracy of each row: what the function calls so, or the number that it returns."""
    found = [returned(call_of(row), kind) for row in rows]
    return [one["acc"] if isinstance(one, dict) else one for one in found]


def given_of(rows: Sequence[ScoredRow]) -> tuple[list[float], list[Any], int]:
    """Return the rewards and texts that a batch has already, and that no function is called."""
    return [row.earlier["style"] for row in rows], [row.answer for row in rows], 0


def passed_of(rows: Sequence[ScoredRow], kind: Kind) -> list[Mapping[str, Any]]:
    """Return the turns and the earlier scores that the function was given for each row."""
    return [{"turns": row.turns, "earlier": row.earlier} for row in rows]


def _episodes(case: Numbers) -> Iterable[Arguments]:
    rows = episodes(case, rewarded=False, with_logprobs=False, routed=False)
    return [(rows,), (rows[::-1],), (rows[2:3],)]


def calls_of_episodes(rows: Sequence[Rollout]) -> list[Mapping[str, Any]]:
    """Return the ids of each answer, and what else the function is given: the row's `index`, and its extras."""
    return [
        {"ids": row.response_ids, "facts": {"index": number, **row.extras}} for number, row in enumerate(rows)
    ]


def _files(case: Numbers) -> Iterable[Arguments]:
    return [([0.25, 0.5],), ([0.5, 0.25, 1.0],)]


REWARD_FUNCTIONS = (
    Plain(
        name="reward calls",
        law="what a reward function is given",
        suspects="the text with padding or without its end, the answer or the facts of another row",
        cases=_cases,
        right=calls_of,
    ),
    Plain(
        name="rewards of calls",
        law="rewards of rows",
        suspects="a reward at another row or token, the wrong one of several numbers",
        cases=_cases,
        right=rewards_of,
        bound=FLOAT32,
    ),
    Plain(
        name="returned with rewards",
        law="what a reward function returns besides",
        suspects="names that are lost, values of other rows",
        cases=_named,
        right=extras_of,
    ),
    Plain(
        name="accuracies of numbers",
        law="accuracies where a reward function returns a number",
        suspects="numbers that are not recorded, so that accuracies are fewer than rows",
        cases=_of_numbers,
        right=accuracies_of,
        bound=FLOAT32,
    ),
    Plain(
        name="given rewards",
        law="rewards that a batch has already",
        suspects="rewards computed a second time, what came with them lost",
        cases=lambda case: [(_rows(case),), (_rows(case)[::-1],)],
        right=given_of,
        bound=FLOAT32,
    ),
    Plain(
        name="turns of reward calls",
        law="turns and earlier scores",
        suspects="those of another row, a name that nothing reads",
        cases=_cases,
        right=passed_of,
    ),
    Plain(
        name="reward calls of episodes",
        law="what a reward function is given of an episode",
        suspects="what a loop or its tools noted of the episode is lost on the way, an answer with padding",
        cases=_episodes,
        right=calls_of_episodes,
    ),
    Plain(
        name="reward functions of files",
        law="each reward function is of its own file",
        suspects="modules that are kept by one name for all files",
        cases=_files,
        right=list,
    ),
)
add_laws(REWARD_CALLS, REWARD_FUNCTIONS)
