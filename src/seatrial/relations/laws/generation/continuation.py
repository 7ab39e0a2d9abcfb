"""R19: parts or turns form one completion, each token with its own log-probability, mask and weight version."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.generation import Continued, Episode, Part
from seatrial.relations.law import Measure, Relation

PROMPT = (7, 3, 11)
ENVIRONMENT_TOKENS = 40
"""Tokens allowed in addition to the turns', for the environment's messages."""


@dataclass(frozen=True, kw_only=True)
class PartsCase(Case):
    """Replies of the engine to successive requests."""

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
    """Return three parts of unequal lengths, of which two may have the same weight version."""
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
    statement="An aborted and continued completion has its parts in order, each token with its own weight version.",
    catalogue="SB043 SB237 SB289",
    cost="CPU, milliseconds",
    cases=_make,
)
TURNS = Relation(
    id="R19.turns",
    name="turns-make-one-completion",
    component="several_turns",
    statement="An episode has its turns in order; the environment's messages are context and not trained on.",
    catalogue="SB043 SB132",
    cost="CPU, milliseconds",
    cases=_make,
)


@PARTS.law("tokens in order", "one field joined in reverse, a part left out")
def tokens_in_order(stack: Any, case: PartsCase) -> Measure:
    whole = case.continued(stack)
    due = {
        "ids": tuple(token for part in case.parts for token in part.ids),
        "logprobs": tuple(value for part in case.parts for value in part.logprobs),
    }
    wrong = [
        f"{name} {getattr(whole, name)}, expected {value}"
        for name, value in due.items()
        if getattr(whole, name) != value
    ]
    return Measure.count(wrong, "fields of a continued completion that differ from its parts in order")


@PARTS.law("weight version of each token", "positions counted within a part, the version of the last part")
def weight_version_of_each_token(stack: Any, case: PartsCase) -> Measure:
    """Segments start where the weight version changes; the completion's own version is that of its first part."""
    whole, place = case.continued(stack), 0
    due: list[tuple[int, int]] = []
    for part in case.parts:
        if not due or due[-1][1] != part.weight_version:
            due.append((place, part.weight_version))
        place += len(part.ids)
    wrong = [f"segments {whole.segments}, expected {tuple(due)}"] * (whole.segments != tuple(due))
    first = case.parts[0].weight_version
    wrong += [f"version {whole.weight_version}, expected {first}"] * (whole.weight_version != first)
    return Measure.count(wrong, "weight versions of a continued completion that differ from its tokens'")


@PARTS.law("requests continue", "sampling that starts over, a limit counted per part")
def requests_continue(stack: Any, case: PartsCase) -> Measure:
    """Each request contains all tokens sampled before, and its limit is the number left."""
    asked, wrong = case.continued(stack).asked, []
    before: tuple[int, ...] = ()
    for number, part in enumerate(case.parts):
        due = ((*PROMPT, *before), case.max_new_tokens - len(before))
        found = asked[number] if number < len(asked) else None
        if found != due:
            wrong.append(f"request {number}: {found}, expected {due}")
        before = (*before, *part.ids)
    return Measure.count(wrong, "requests that do not continue where the previous one was aborted")


def _episode(stack: Any, case: PartsCase) -> tuple[Episode, list[tuple[tuple[int, ...], Part | None]]]:
    """Return an episode and its segments in order: their ids and turn (None for the environment's messages)."""
    words = [f"={number};" for number in range(41, 40 + len(case.parts))]
    found: Episode = stack.episode(
        PROMPT, case.parts, words, max_new_tokens=case.max_new_tokens + ENVIRONMENT_TOKENS
    )
    segments: list[tuple[tuple[int, ...], Part | None]] = []
    for number, part in enumerate(case.parts):
        segments.append((part.ids, part))
        if number < len(words) and number < len(found.words_ids):
            segments.append((found.words_ids[number], None))
    return found, segments


@TURNS.law("turns in order", "a turn masked together with the message after it, log-probabilities shifted")
def turns_in_order(stack: Any, case: PartsCase) -> Measure:
    """Turns and messages alternate; sampled tokens have mask 1 and their own log-probabilities, messages mask 0."""
    found, segments = _episode(stack, case)
    ids = tuple(token for of, _ in segments for token in of)
    mask = tuple(int(part is not None) for of, part in segments for _ in of)
    logprobs = [value for _, part in segments if part is not None for value in part.logprobs]
    sampled = [value for value, on in zip(found.logprobs, mask, strict=False) if on]
    wrong = [f"ids {found.ids}, expected {ids}"] * (found.ids != ids)
    wrong += [f"mask {found.mask}, expected {mask}"] * (found.mask != mask)
    wrong += [f"log-probabilities {sampled}, expected {logprobs}"] * (sampled != logprobs)
    wrong += [f"{len(found.logprobs)} log-probabilities for {len(ids)} tokens"] * (
        len(found.logprobs) != len(ids)
    )
    return Measure.count(wrong, "fields of an episode that differ from its turns in order")


@TURNS.law("turns continue", "a turn sampled without the prompt, a limit counted per turn")
def turns_continue(stack: Any, case: PartsCase) -> Measure:
    """Each turn is sampled from the prompt and everything after it, within the tokens left."""
    found, segments = _episode(stack, case)
    before: tuple[int, ...] = ()
    due = []
    for ids, part in segments:
        if part is not None:
            due.append(((*PROMPT, *before), case.max_new_tokens + ENVIRONMENT_TOKENS - len(before)))
        before = (*before, *ids)
    wrong = [f"requested {list(found.asked)}, expected {due}"] * (list(found.asked) != due)
    return Measure.count(wrong, "turns not sampled from the whole episode so far")
