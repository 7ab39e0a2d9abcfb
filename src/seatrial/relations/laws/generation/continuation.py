"""R19: a completion of several parts or turns is one completion, each token with its own number, mask and weights."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.generation import Continued, Episode, Part
from seatrial.relations.law import Measure, Relation

PROMPT = (7, 3, 11)
ROOM = 40
"""Tokens beside the turns', for what the environment says."""


@dataclass(frozen=True, kw_only=True)
class PartsCase(Case):
    """What the engine answers to one request after another."""

    parts: tuple[Part, ...]
    max_new_tokens: int

    def smaller(self) -> Iterator[PartsCase]:
        """Yield one part fewer."""
        if len(self.parts) > 2:
            yield replace(self, parts=self.parts[1:])

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values."""
        return {"parts": [vars(part) for part in self.parts], "max_new_tokens": self.max_new_tokens}

    def continued(self, stack: Any) -> Continued:
        """Return the completion."""
        found: Continued = stack.continued(PROMPT, self.parts, max_new_tokens=self.max_new_tokens)
        return found


def _make(stack: Any, seed: int, tidy: bool) -> PartsCase:
    """Return three parts of unequal lengths, of which two may be of one version."""
    stream = random.Random(seed)
    lengths = (2, 1, 3) if tidy else stream.sample(range(1, 6), 3)
    version, parts = 4, []
    for length in lengths:
        ids = tuple(stream.randrange(20, 90) for _ in range(length))
        logprobs = tuple(-stream.uniform(0.1, 3.0) for _ in range(length))
        parts.append(Part(ids=ids, logprobs=logprobs, weight_version=version))
        version += stream.choice((0, 1, 2)) if len(parts) > 1 else 1
    return PartsCase(parts=tuple(parts), max_new_tokens=sum(lengths) + stream.randint(0, 4))


PARTS = Relation(
    id="R19.parts",
    name="continued-completions-are-whole",
    component="continuation",
    statement="A completion given up and continued holds its parts in order, each token with its own weights.",
    catalogue="SB043 SB237 SB289",
    cost="CPU, milliseconds",
    cases=_make,
)
TURNS = Relation(
    id="R19.turns",
    name="turns-make-one-completion",
    component="several_turns",
    statement="An episode holds its turns in order; what the environment says is read, and not trained on.",
    catalogue="SB043 SB132",
    cost="CPU, milliseconds",
    cases=_make,
)


@PARTS.law("tokens in their order", "one field joined the other way round, a part left out")
def tokens(stack: Any, case: PartsCase) -> Measure:
    whole = case.continued(stack)
    due = {
        "ids": tuple(token for part in case.parts for token in part.ids),
        "logprobs": tuple(value for part in case.parts for value in part.logprobs),
    }
    wrong = [
        f"{name} {getattr(whole, name)} for {value}"
        for name, value in due.items()
        if getattr(whole, name) != value
    ]
    return Measure.count(
        wrong, "fields of a continued completion that are not those of its parts, in their order"
    )


@PARTS.law("weights of each token", "places counted in a part, the version of the last part")
def weights(stack: Any, case: PartsCase) -> Measure:
    """Segments begin where weights changed, counted in the whole completion, whose version is that of the first."""
    whole, place = case.continued(stack), 0
    due: list[tuple[int, int]] = []
    for part in case.parts:
        if not due or due[-1][1] != part.weight_version:
            due.append((place, part.weight_version))
        place += len(part.ids)
    wrong = [f"segments {whole.segments} for {tuple(due)}"] * (whole.segments != tuple(due))
    first = case.parts[0].weight_version
    wrong += [f"version {whole.weight_version} for {first}"] * (whole.weight_version != first)
    return Measure.count(wrong, "weights of a continued completion that are not those of its tokens")


@PARTS.law("requests go on", "sampling that starts anew, a limit counted for each part")
def requests(stack: Any, case: PartsCase) -> Measure:
    """Each request carries what was sampled before, and asks for no more than what is left."""
    asked, wrong = case.continued(stack).asked, []
    before: tuple[int, ...] = ()
    for number, part in enumerate(case.parts):
        due = ((*PROMPT, *before), case.max_new_tokens - len(before))
        found = asked[number] if number < len(asked) else None
        if found != due:
            wrong.append(f"request {number}: {found} for {due}")
        before = (*before, *part.ids)
    return Measure.count(wrong, "requests that do not go on where the one before was given up")


def _episode(stack: Any, case: PartsCase) -> tuple[Episode, list[tuple[tuple[int, ...], Part | None]]]:
    """Return an episode, and its stretches in their order: ids, and the turn that they are; None: the environment's."""
    words = [f"={number};" for number in range(41, 40 + len(case.parts))]
    found: Episode = stack.episode(PROMPT, case.parts, words, max_new_tokens=case.max_new_tokens + ROOM)
    stretches: list[tuple[tuple[int, ...], Part | None]] = []
    for number, part in enumerate(case.parts):
        stretches.append((part.ids, part))
        if number < len(words) and number < len(found.words_ids):
            stretches.append((found.words_ids[number], None))
    return found, stretches


@TURNS.law("turns in their order", "a turn masked with the words after it, numbers of the words first")
def turns(stack: Any, case: PartsCase) -> Measure:
    """Turns and words stand one after another; what was sampled trains with its own numbers, and words do not."""
    found, stretches = _episode(stack, case)
    ids = tuple(token for of, _ in stretches for token in of)
    mask = tuple(int(part is not None) for of, part in stretches for _ in of)
    logprobs = [value for _, part in stretches if part is not None for value in part.logprobs]
    sampled = [value for value, on in zip(found.logprobs, mask, strict=False) if on]
    wrong = [f"ids {found.ids} for {ids}"] * (found.ids != ids)
    wrong += [f"mask {found.mask} for {mask}"] * (found.mask != mask)
    wrong += [f"log-probabilities {sampled} for {logprobs}"] * (sampled != logprobs)
    wrong += [f"{len(found.logprobs)} log-probabilities"] * (len(found.logprobs) != len(ids))
    return Measure.count(wrong, "fields of an episode that are not those of its turns, in their order")


@TURNS.law("turns go on", "a turn that is sampled without the prompt, a limit for each turn")
def turns_go_on(stack: Any, case: PartsCase) -> Measure:
    """Each turn is sampled after the prompt and all that was said, within what is left of the limit."""
    found, stretches = _episode(stack, case)
    before: tuple[int, ...] = ()
    due = []
    for ids, part in stretches:
        if part is not None:
            due.append(((*PROMPT, *before), case.max_new_tokens + ROOM - len(before)))
        before = (*before, *ids)
    wrong = [f"asked {list(found.asked)} for {due}"] * (list(found.asked) != due)
    return Measure.count(wrong, "turns that are not sampled after all that was said")
