"""R31.async_rollouts: rollouts that a server samples during training are trained as sampled, scored and packed."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of
from seatrial.relations.laws.utilities.records import random_words

ASYNC = relation_of(
    "async_rollouts",
    "rollouts-during-training-are-what-was-sampled",
    "Sampled tokens train with the server's log-probabilities, results of tools do not, and packs lose no token.",
)
COPIES = 3


class Turn(NamedTuple):
    """What the model says; the tool writes each argument in capitals."""

    words: str
    arguments: tuple[str, ...] = ()
    ended: bool = True


class Request(NamedTuple):
    """What the server was asked, and what it gave."""

    prompt: str
    answer: str
    logprobs: Sequence[float]
    options: Mapping[str, Any]


class Row(NamedTuple):
    """A row that trains."""

    number: int
    """Of its prompt."""
    text: str
    spans: Sequence[str]
    """Texts of the tokens that train, in succession."""
    logprobs: Sequence[float]
    """Of these tokens."""
    rest: Sequence[float]
    """Log-probabilities at the other tokens."""
    advantage: float
    reward: float


class Rolled(NamedTuple):
    """What the rollouts of a plan leave."""

    opened: Sequence[str]
    """Text of each prompt as the template writes it, with what opens an answer."""
    requests: Sequence[Request]
    rows: Sequence[Row]
    rewarded: Sequence[tuple[int, str]]
    """Prompt's number and contents of all messages of each completion that a reward function got."""
    counts: Mapping[str, float]
    """`turns`, `calls`, `cut` (without an end) and `limited` (a call that was not followed), of all rollouts."""


Plan = Sequence[Sequence[Sequence[Turn]]]
"""By prompt, by copy: the turns."""


def _plan(case: Numbers) -> Plan:
    words = random_words(case, 6 * COPIES + 3)
    texts = iter(f"{word}{chr(97 + place)}" for place, word in enumerate(words))

    def turns(*calls: int, ended: bool = True) -> tuple[Turn, ...]:
        made = [
            Turn(next(texts), tuple(f"{chr(103 + n)}{next(texts)[:2]}" for n in range(count)))
            for count in calls
        ]
        return (*made[:-1], made[-1]._replace(ended=ended))

    return [
        [turns(0), turns(1, 0), turns(0, ended=False)],
        [turns(1, 1, 0), turns(2, 0), turns(0)],
    ]


def reward_of(number: int, text: str) -> float | None:
    """Return the reward of a completion's contents; None for some."""
    value = sum(map(ord, text)) + number
    return None if value % 5 == 0 else value % 7 / 4


def _followed(turns: Sequence[Turn], limit: int | None) -> tuple[list[Turn], int]:
    """Return the turns that are sampled under a limit of rounds of calls, and how many are followed by results."""
    calls = sum(bool(one.arguments) for one in turns)
    rounds = calls if limit is None else min(calls, limit)
    return list(turns[: rounds + 1]), rounds


def _wrong_rows(rolled: Rolled, plan: Plan, limit: int | None) -> list[str]:
    wrong = []
    due = Counter(
        (number, one.words) for number, copies in enumerate(plan) for turns in copies for one in turns[:1]
    )
    if Counter((row.number, _words(row.spans[0] if row.spans else "")) for row in rolled.rows) != due:
        return [f"rows of {[row.spans for row in rolled.rows]}"]
    scripts = {turns[0].words: turns for copies in plan for turns in copies}
    answers = {request.answer: request for request in rolled.requests}
    for row in rolled.rows:
        turns, _ = _followed(scripts[_words(row.spans[0])], limit)
        served = [answers.get(span) for span in row.spans]
        if [_words(span) for span in row.spans] != [one.words for one in turns] or None in served:
            wrong.append(f"{len(row.spans)} turns train, and not {len(turns)}: {row.spans}")
            continue
        given = [value for one in served if one for value in one.logprobs]
        if not _close(row.logprobs, given) or any(row.rest):
            wrong.append("log-probabilities are not those of the server, or at tokens that were not sampled")
        place = 0
        for number, request in enumerate(one for one in served if one):
            before = (
                rolled.opened[row.number]
                if number == 0
                else row.text[: row.text.index(row.spans[number], place)]
            )
            results = [one.upper() for one in turns[number - 1].arguments] if number else []
            if request.prompt != before or not all(one in before[place:] for one in results):
                wrong.append(f"the prompt of turn {number} is {request.prompt!r}, and the row has {before!r}")
            place = len(before) + len(row.spans[number])
        if place != len(row.text):
            wrong.append(f"{row.text[place:]!r} follows the last turn")
    return wrong


def _words(span: str) -> str:
    return "".join(letter for letter in span.partition("{")[0].partition("<")[0])


def _close(given: Sequence[float], due: Sequence[float]) -> bool:
    return len(given) == len(due) and all(
        math.isclose(one, other, abs_tol=1e-6) for one, other in zip(given, due, strict=True)
    )


def _wrong_scores(rolled: Rolled, plan: Plan, limit: int | None) -> list[str]:
    """Return where rewards or advantages of a prompt's copies are wrong; the deviation may have either divisor."""
    wrong = []
    due_texts: Counter[tuple[int, str]] = Counter()
    for number, copies in enumerate(plan):
        rewards: dict[str, float] = {}
        for all_turns in copies:
            turns, rounds = _followed(all_turns, limit)
            said = "".join(
                one.words + ("".join(word.upper() for word in one.arguments) if place < rounds else "")
                for place, one in enumerate(turns)
            )
            due_texts[number, said] += 1
            value = reward_of(number, said)
            rewards[turns[0].words] = math.nan if value is None else value
        known = [value for value in rewards.values() if not math.isnan(value)]
        mean = sum(known) / len(known) if known else 0.0
        spreads = [0.0]
        if len(known) > 1:
            spreads = [statistics.pstdev(known), statistics.stdev(known)]
        for row in rolled.rows:
            if row.number != number or not row.spans or _words(row.spans[0]) not in rewards:
                continue
            value = rewards[_words(row.spans[0])]
            fits = [0.0] if math.isnan(value) else [(value - mean) / (one + 1e-8) for one in spreads]
            same = (
                math.isnan(row.reward) if math.isnan(value) else math.isclose(row.reward, value, abs_tol=1e-6)
            )
            if not same or not any(
                math.isclose(row.advantage, one, rel_tol=1e-2, abs_tol=1e-3) for one in fits
            ):
                wrong.append(f"reward {row.reward} and advantage {row.advantage}, and not {value} and {fits}")
    if Counter(rolled.rewarded) != due_texts:
        wrong.append(f"reward functions got {sorted(rolled.rewarded)}, and not {sorted(due_texts)}")
    return wrong


def _wrong_counts(rolled: Rolled, plan: Plan, limit: int | None) -> list[str]:
    due = dict.fromkeys(("turns", "calls", "cut", "limited"), 0.0)
    for copies in plan:
        for all_turns in copies:
            turns, rounds = _followed(all_turns, limit)
            due["turns"] += len(turns)
            due["calls"] += sum(len(one.arguments) for one in turns[:rounds])
            due["cut"] += not turns[-1].ended
            due["limited"] += bool(turns[-1].arguments)
    return [f"{name}: {rolled.counts.get(name)}, and not {value}" for name, value in due.items()
            if rolled.counts.get(name, value) != value]  # fmt: skip


@ASYNC.law(
    "rollouts with tools",
    "results of tools that train, a turn tokenized otherwise, limits of 0 and 1 rounds, log-probabilities moved",
    excluded=without("asynchronous rollouts"),
)
def rollouts_are_as_sampled(stack: Any, case: Numbers) -> Measure:
    """Check rows, rewards, advantages and counts without a limit of rounds of calls, and with limits of 0 and 1."""
    wrong, plan = [], _plan(case)
    for limit in (None, 0, 1):
        rolled: Rolled = stack.utilities["asynchronous rollouts"](plan, limit)
        for check in (_wrong_rows, _wrong_scores, _wrong_counts):
            wrong += [f"limit {limit}: {one}" for one in check(rolled, plan, limit)]
        due = stack.utilities["asynchronous options"]
        wrong += [
            f"options {one.options}"
            for one in rolled.requests
            if any(one.options.get(k) != v for k, v in due.items())
        ][:1]
    return Measure.count(wrong, "faults of rollouts")


class Sample(NamedTuple):
    """A row that is packed."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float
    group: int


Term = tuple[tuple[int, ...], int, float, float]
"""Ids before a token and its own, log-probability and advantage."""


def _samples(case: Numbers) -> list[Sample]:
    """Return rows of which some begin equally, two are equal, one is the begin of another, one has masked parts."""
    import torch

    generator = case.generator()
    draws = torch.randint(5, 9, (40,), generator=generator).tolist()
    shapes = [(draws[:4], draws[4:9]), (draws[:4], draws[9:12]), (draws[:4], [*draws[4:9], 7, 8]),
              (draws[:4], draws[4:9]), (draws[20:22], draws[22:30]), ([*draws[:4], 3], draws[30:33])]  # fmt: skip
    found = []
    for number, (prompt, answer) in enumerate(shapes):
        mask = [0] * len(prompt) + [int(place % 4 != 2 or number % 2 == 0) for place in range(len(answer))]
        values = [-(number * 20 + place + 1) / 256 for place in range(len(mask))]
        found.append(
            Sample(
                (*prompt, *answer), tuple(mask), tuple(values), number / 4 - 0.5, 0 if number < 4 else number
            )
        )
    return found


def _terms(sample: Sample) -> list[Term]:
    return [
        (sample.ids[:place], sample.ids[place], sample.logprobs[place], sample.advantage)
        for place in range(1, len(sample.ids))
        if sample.mask[place]
    ]


@ASYNC.law(
    "packed rollouts",
    "tokens of a pack that see others' tokens, a shared begin that trains once, a row left out or too long",
    excluded=without("packed rollouts"),
)
def packs_have_every_term(stack: Any, case: Numbers) -> Measure:
    """Compare the terms of packs, by what each sees before it, with those of every row alone."""
    wrong = []
    for parts in (1, 2):
        for limit in (None, 14):
            samples = [one for one in _samples(case) if limit is None or len(one.ids) <= limit]
            given = stack.utilities["packed rollouts"](_samples(case), parts, limit)
            due = Counter(term for one in samples for term in _terms(one))
            found = Counter(term for batch in given for pack, _ in batch for term in pack)
            # a last batch that is not full stays open where the number of tokens is limited
            if found - due or (limit is None and found != due):
                wrong.append(f"{parts} parts, limit {limit}: {list((found - due) + (due - found))[:2]}")
            sizes = [size for batch in given for _, size in batch]
            if not found or 0 in sizes or (limit and max(sizes) > limit):
                wrong.append(f"{parts} parts, limit {limit}: packs of {sizes} tokens")
    return Measure.count(wrong, "packs with other terms")


class Stepped(NamedTuple):
    """What a step on samples leaves."""

    loss: float
    gradients: Mapping[int, float]
    """Of the loss, by id, with respect to the log-probability that the model gives to it."""
    logged: Mapping[str, float]
    """`ratio`, `kl`, `entropy`, `clipped`, `clipped low`, `clipped high`: means over tokens, those that are logged."""


LOGGED = ("ratio", "kl", "entropy", "clipped", "clipped low", "clipped high")
CLIP = (0.1, 0.2)
PARTS = 2
"""Micro-batches of the step, of which one is judged."""


def _step_samples(case: Numbers) -> list[Sample]:
    """Return rows whose ratios leave the range on both sides, with advantages of both signs."""
    import torch

    generator = case.generator()
    found = []
    for number, (prompt, answer) in enumerate(((2, 6), (3, 4), (1, 9), (4, 5))):
        ids = torch.randint(0, 32, (prompt + answer,), generator=generator).tolist()
        moves = (0.25 * torch.randn(prompt + answer, generator=generator)).tolist()
        mask = [int(place >= prompt and place != prompt + 2) for place in range(prompt + answer)]
        old = [logprob_of(one) + move for one, move in zip(ids, moves, strict=True)]
        found.append(Sample(tuple(ids), tuple(mask), tuple(old), (-1.0, 0.5, 1.5, -0.25)[number], number))
    return found


def logprob_of(token: int) -> float:
    """Return the log-probability that the model gives to an id after any others."""
    return -(token + 1) / 16


def entropy_of(token: int) -> float:
    """Return the entropy of the distribution that a token is drawn from."""
    return (token + 1) % 7 / 4


@ASYNC.law(
    "a step",
    "tokens of tools that train, another divisor, a token that counts as clipped though its loss is not",
    excluded=without("asynchronous step"),
)
def steps_are_by_definition(stack: Any, case: Numbers) -> Measure:
    """Compare the loss of a micro-batch, its gradients and what it logs with a loop over the tokens that train."""
    samples = _step_samples(case)
    found: Stepped = stack.utilities["asynchronous step"](samples, CLIP, PARTS)
    tokens = [
        (logprob_of(one), entropy_of(one), one, old, sample.advantage)
        for sample in samples
        for one, on, old in zip(sample.ids, sample.mask, sample.logprobs, strict=True)
        if on
    ]
    sums = dict.fromkeys(("loss", *LOGGED), 0.0)
    gradients: dict[int, float] = {}
    for new, entropy, one, old, gain in tokens:
        ratio = math.exp(new - old)
        low, high = ratio < 1 - CLIP[0] and gain < 0, ratio > 1 + CLIP[1] and gain > 0
        sums["loss"] -= min(ratio * gain, min(max(ratio, 1 - CLIP[0]), 1 + CLIP[1]) * gain)
        values = (ratio, ratio - 1 - (new - old), entropy, low or high, low, high)
        for name, value in zip(LOGGED, values, strict=True):
            sums[name] += value
        gradients[one] = gradients.get(one, 0.0) - (0.0 if low or high else ratio * gain)
    count = len(tokens)
    due = {"loss": sums["loss"] / count / PARTS, **{name: sums[name] / count for name in LOGGED}}
    given = {"loss": found.loss, **found.logged}
    wrong = [
        f"{name} is {value}, and not {due[name]}"
        for name, value in given.items()
        if not math.isclose(value, due[name], rel_tol=1e-4, abs_tol=1e-5)
    ]
    wrong += [
        f"the gradient of id {one} is {found.gradients.get(one, 0.0)}, and not {value / count / PARTS}"
        for one, value in gradients.items()
        if not math.isclose(found.gradients.get(one, 0.0), value / count / PARTS, rel_tol=1e-4, abs_tol=1e-5)
    ]
    return Measure.count(wrong, "wrong numbers of a step")


STALEST = 2


@ASYNC.law(
    "a queue that is empty at times",
    "a clock that each poll starts again, a row that is too old, rows in another order",
    excluded=without("asynchronous queue"),
)
def waiting_is_counted(stack: Any, case: Numbers) -> Measure:
    """Compare the rows that a queue gives, and the seconds that are logged as waiting, by a clock of the law's."""
    import torch

    delays = [0.0, 2.0, 13.0, *torch.randint(0, 40, (2,), generator=case.generator()).tolist()]
    wrong = []
    for ages in ([0, 1, 2, 0, 1], [0, 3, 2, 5, 0]):
        rows, waited = stack.utilities["asynchronous queue"](delays, ages, STALEST)
        kept = [place for place, age in enumerate(ages) if age <= STALEST]
        if list(rows) != kept:
            wrong.append(f"rows {rows} of ages {ages}, and not {kept}")
        if len(kept) == len(ages) and not math.isclose(waited, sum(delays), abs_tol=1e-3):
            wrong.append(f"{waited} s of waiting, and not {sum(delays)}")
    return Measure.count(wrong, "rows or waiting times that are wrong")
