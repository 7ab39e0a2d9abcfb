"""R31.records, R31.rewards: functions of data sets keep every field, and rewards are those of their papers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.utilities.numbers import Numbers, numbers, without

RECORDS = Relation(
    id="R31.records",
    name="functions-of-data-sets-keep-records",
    component="utilities",
    statement="Unpairing, prompts taken out of pairs, cut columns and blocks of messages lose and mix nothing.",
    cost="CPU, milliseconds",
    cases=numbers,
)
REWARDS = Relation(
    id="R31.rewards",
    name="reward-functions-follow-their-papers",
    component="utilities",
    statement="Rewards of length, repetition and format are those of the formulas that the documentation names.",
    cost="CPU, milliseconds",
    cases=numbers,
)


def random_words(case: Numbers, length: int) -> list[str]:
    rng = np.random.default_rng([case.seed, 31, length])
    return ["".join(rng.choice(list("abcdef"), size=3)) for _ in range(length)]


@RECORDS.law(
    "unpaired records", "answers of another prompt, a label for another answer", excluded=without("unpair")
)
@RECORDS.law(
    "unpaired records with further columns",
    "further columns lost, or those of another record",
    further=("source",),
    excluded=without("unpair"),
)
def unpaired_records_belong_together(stack: Any, case: Numbers, further: Sequence[str] = ()) -> Measure:
    """Check that each answer is there once, with its own prompt, label and further columns."""
    records = [
        {
            "prompt": f"p{word}{place}",
            "chosen": f"c{place}",
            "rejected": f"r{place}",
            **dict.fromkeys(further, f"s{place}"),
        }
        for place, word in enumerate(random_words(case, 5))
    ]
    due = [
        (one["prompt"], one[which], which == "chosen", one.get("source"))
        for one in records
        for which in ("chosen", "rejected")
    ]
    given = [
        (one.get("prompt"), one.get("completion"), one.get("label"), one.get("source"))
        for one in stack.utilities["unpair"](records)
    ]
    return (
        Measure.count(sorted(map(str, {*due} ^ {*given})), "unpaired records that are missing or wrong")
        if (len(given) == len(due))
        else Measure.count([f"{len(given)} records of {len(due)}"], "unpaired records")
    )


@RECORDS.law(
    "prompt of a pair",
    "a prompt that ends too early or too late, an answer cut at its other end",
    answers=((" yes", " no"), ("yes", "no"), (" ya", " yb")),
    excluded=without("extract prompt"),
)
@RECORDS.law(
    "prompt of a pair, nothing in common",
    "a place before the first one, counted from the end",
    answers=(("yes ", "no"), ("yes ", "no ")),
    begins=("",),
    excluded=without("extract prompt"),
)
@RECORDS.law(
    "prompt of a pair, one answer begins the other",
    "the last thing in common left to the answers",
    answers=(("yes", "yesno"),),
    excluded=without("extract prompt"),
)
def prompt_is_what_both_begin_with(
    stack: Any,
    case: Numbers,
    answers: Sequence[tuple[str, str]],
    begins: Sequence[str] = ("why is it so?", "a b c:"),
) -> Measure:
    """Compare the prompt with the longest common beginning, a space at its end aside; texts stay whole."""
    wrong = []
    for begin in begins:
        for chosen, rejected in answers:
            given = stack.utilities["extract prompt"](begin + chosen, begin + rejected)
            common = _common(begin + chosen, begin + rejected)
            if given[0] + given[1] != begin + chosen or given[0] + given[2] != begin + rejected:
                wrong.append(f"{begin + chosen!r} and {begin + rejected!r} became {given}")
            elif given[0].rstrip(" ") != common.rstrip(" "):
                wrong.append(f"prompt {given[0]!r} of {begin + chosen!r} and {begin + rejected!r}")
    return Measure.count(wrong, "prompts that are not what both answers begin with")


def _common(one: str, other: str) -> str:
    length = next((place for place in range(len(one)) if not other.startswith(one[: place + 1])), len(one))
    return one[:length]


@RECORDS.law(
    "prompt of a pair of conversations", "a turn too many or too few", excluded=without("extract prompt")
)
def prompt_of_turns_is_what_both_begin_with(stack: Any, case: Numbers) -> Measure:
    """Check conversations of one and several turns, whose last turns differ."""
    words, wrong = random_words(case, 6), []
    for length in (1, 2, 4):
        turns = [
            {"role": ("user", "assistant")[place % 2], "content": words[place]} for place in range(length)
        ]
        chosen, rejected = ({"role": "assistant", "content": word} for word in ("yes", "no"))
        given = stack.utilities["extract prompt"]([*turns, chosen], [*turns, rejected])
        if list(map(list, given)) != [turns, [chosen], [rejected]]:
            wrong.append(f"{length} turns of a prompt: {given}")
    return Measure.count(wrong, "prompts of conversations")


@RECORDS.law(
    "cut columns",
    "the end kept, one column alone cut, columns that are no lists changed",
    excluded=without("cut records"),
)
def columns_are_cut_at_the_length(stack: Any, case: Numbers) -> Measure:
    """Compare all columns of lists with their beginnings; others stay."""
    rng = np.random.default_rng([case.seed, 31])
    lengths = [3, 8, 5, 1, 6] if case.tidy else [3, 8, 5, 1, 0, 6]
    ids = [[int(one) for one in rng.integers(0, 90, size=length)] for length in lengths]
    columns = {
        "input_ids": ids,
        "attention_mask": [[1] * len(row) for row in ids],
        "source": [f"s{place}" for place in range(len(ids))],
    }
    given = stack.utilities["cut records"](columns, 5)
    due = {
        **columns,
        "input_ids": [row[:5] for row in ids],
        "attention_mask": [[1] * min(len(row), 5) for row in ids],
    }
    return Measure.count(
        [f"{name}: {given.get(name)}" for name in due if given.get(name) != due[name]],
        "columns cut otherwise",
    )


@RECORDS.law(
    "entries without None",
    "a False or an empty list taken for None, a nested None kept",
    excluded=without("without None"),
)
def only_none_is_removed(stack: Any, case: Numbers) -> Measure:
    """Compare nested entries with those that are due: what is empty, 0 or False stays."""
    given = [
        {"a": {"b": None, "c": 0, "d": [], "e": ""}, "f": False, "g": None, "h": [{"i": None, "j": 1}, "k"]}
    ]
    due = [{"a": {"c": 0, "d": [], "e": ""}, "f": False, "h": [{"j": 1}, "k"]}]
    found = stack.utilities["without None"](given)
    return Measure.count([] if found == due else [found], "entries that are not those without None")


@RECORDS.law(
    "common beginning of ids",
    "the shorter one's length, a place after the first difference",
    excluded=without("common prefix"),
)
def common_prefix_is_longest(stack: Any, case: Numbers) -> Measure:
    """Compare lengths with a loop, for equal, empty, nested and different ids."""
    rng = np.random.default_rng([case.seed, 32])
    base = [int(one) for one in rng.integers(0, 9, size=6)]
    pairs = [(base, base), (base, base[:3]), ([], base), (base, [*base[:2], 10, *base[3:]]), ([10], [11])]
    wrong = []
    for one, other in pairs:
        right = next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
        right = min(len(one), len(other)) if right is None else right
        given = stack.utilities["common prefix"](one, other)
        wrong += [] if given == right else [f"{given} of {one} and {other}"]
    return Measure.count(wrong, "lengths of what both begin with")


@RECORDS.law(
    "messages with images",
    "images after the text, in each turn, in another order, the input changed",
    excluded=without("messages with images"),
)
def images_are_before_the_first_text(stack: Any, case: Numbers) -> Measure:
    """Check that texts become blocks, that all images precede the first user's text in their order, and no more."""
    words = random_words(case, 4)
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": word} for role, word in zip(roles, words, strict=True)]
    before, wrong = [dict(one) for one in messages], []
    for images in (["first"], ["first", "second"]):
        given = stack.utilities["messages with images"](messages, images)
        due = [_blocks(one, images if place == 1 else []) for place, one in enumerate(messages)]
        wrong += [] if [_plain(one) for one in given] == due else [f"{len(images)} images: {given}"]
    wrong += [] if messages == before else ["the given messages changed"]
    return Measure.count(wrong, "messages with images")


def _blocks(message: Mapping[str, Any], images: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
    return message["role"], [*(("image", one) for one in images), ("text", message["content"])]


def _plain(message: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    return message["role"], [(one["type"], one[one["type"]]) for one in message["content"]]


@REWARDS.law(
    "format of thought",
    "a block that does not begin the text, a second block, an end alone",
    excluded=without("think format"),
)
def format_is_one_block_of_thought(stack: Any, case: Numbers) -> Measure:
    """Compare rewards with what the documentation says: one block that the text begins with."""
    first, second = random_words(case, 2)
    texts = {
        f"<think>\n{first}\n</think>\n{second}": 1.0,
        f"<think>{first}</think>{second}": 1.0,
        f"<think>\n{first}\n{second}": 0.0,
        f"{first}\n</think>\n{second}": 0.0,
        f"{first}<think>\n{second}\n</think>": 0.0,
        first: 0.0,
        "": 0.0,
    }
    given = stack.utilities["think format"](list(texts))
    wrong = [f"{text!r}: {one}" for (text, due), one in zip(texts.items(), given, strict=True) if one != due]
    return Measure.count(wrong, "rewards of a format")


@REWARDS.law(
    "punishment of length",
    "a border moved by one, the sign turned",
    excluded=without("overlong"),
)
@REWARDS.law(
    "punishment of length, a cache of no tokens",
    "a division by 0, no punishment at all",
    excluded=without("overlong"),
    caches=(0,),
)
def length_is_punished_by_the_formula(stack: Any, case: Numbers, caches: Sequence[int] = ()) -> Measure:
    """Compare punishments around both borders with equation 13 of DAPO, with a cache and without."""
    longest, found = 40 + case.seed % 7, []
    for cache in caches or (8, longest):
        start = longest - cache
        lengths = sorted({0, 1, start, start + 1, longest - 1, longest, longest + 1, 2 * longest})
        given = stack.utilities["overlong"](lengths, longest, cache)
        for length, one in zip(lengths, given, strict=True):
            due = 0.0 if length <= start else -1.0 if length > longest else (start - length) / cache
            found.append((abs(one - due), f"length {length} of {longest}, cache {cache}"))
    return Measure.largest(found, 1e-9, "punishments of length")


@REWARDS.law(
    "penalty of repetition",
    "words counted in place of tokens, shares of unique ones, short rows",
    excluded=without("repetition"),
)
def repetition_is_punished_by_its_share(stack: Any, case: Numbers) -> Measure:
    """Compare with 1 - unique / all n-grams, for rows shorter than n too."""
    rng = np.random.default_rng([case.seed, 33])
    rows = [[int(one) for one in rng.integers(0, 4, size=length)] for length in (30, 5, 2, 0)]
    rows += [[1] * 9, list(range(9))]
    found = []
    for n, largest in ((1, -1.0), (2, -0.5), (3, -1.0)):
        for row, one in zip(rows, stack.utilities["repetition"](rows, n, largest), strict=True):
            grams = [tuple(row[place : place + n]) for place in range(len(row) - n + 1)]
            due = largest * (1 - len(set(grams)) / len(grams)) if grams else 0.0
            found.append((abs(one - due) if not math.isnan(one) else math.nan, f"n {n}, {row}"))
    return Measure.largest(found, 1e-9, "penalties of repetition")


@REWARDS.law(
    "cosine of the length",
    "bounds of wrong answers the other way round, a length beyond the longest that rises again",
    excluded=without("cosine"),
)
def correctness_is_scaled_by_length(stack: Any, case: Numbers) -> Measure:
    """Compare rewards with those of appendix C.1 of arXiv 2502.03373; an answer without a verdict has none."""
    longest, lengths = 40, [0, 1, 20, 39, 40] if case.tidy else [0, 1, 20, 39, 40, 41, 60, 90]
    found = []
    for wrong, right in (((-1.0, -0.5), (0.5, 1.0)), ((-10.0, 0.0), (1.0, 2.0))):
        for correct, (short, long) in ((True, right[::-1]), (False, wrong)):
            given = stack.utilities["cosine"]([correct] * len(lengths), lengths, longest, wrong, right)
            for length, one in zip(lengths, given, strict=True):
                share = (1 + math.cos(math.pi * min(length / longest, 1.0))) / 2
                found.append(
                    (abs(one - long - (short - long) * share), f"{length} tokens, correct {correct}")
                )
    none = stack.utilities["cosine"]([None, True], [3, 3], longest, (-1.0, -0.5), (0.5, 1.0))
    found.append((0.0 if none[0] is None and none[1] is not None else math.inf, "no verdict"))
    return Measure.largest(found, 1e-6, "rewards of length, difference")
