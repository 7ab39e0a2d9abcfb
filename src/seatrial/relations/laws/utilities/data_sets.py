"""R31.data_sets: data sets of prompts and of pairs have the rows of their files, as many as configured."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import difference, relation_of

DATA_SETS = relation_of(
    "data_sets",
    "data-sets-have-the-rows-of-their-files",
    "A data set has the rows of its files in their order, or as many of them as are configured; what a row says of its "
    "prompt, of its pair and of its tools is kept, and a data set that is saved and loaded has the same rows.",
)
PROMPTS = "prompts of files"
PAIRS = "pairs of files"
Record = dict[str, Any]
WORDS = ("able", "bold", "calm", "dear", "even", "fair", "glad", "high", "idle", "just", "keen")


def _text(stream: random.Random, longest: int = 6) -> str:
    return " ".join(stream.choice(WORDS) for _ in range(stream.randint(1, longest)))


def prompt_files(case: Numbers, sizes: Sequence[int] = (5, 4)) -> list[list[Record]]:
    """Return the records of several files; rows name their number, and some have arguments of tools."""
    stream, number, files = random.Random(case.seed), 0, []
    for size in sizes:
        own = []
        for _ in range(size):
            turns = [{"role": "user", "content": _text(stream)}]
            if number % 2:
                turns = [{"role": "system", "content": _text(stream)}, *turns]
            own.append(
                {
                    "prompt": turns,
                    "data_source": ("made/a", "made/b")[number % 2],
                    "reward_model": {"ground_truth": str(number)},
                    "extra_info": {
                        "index": 100 + number,
                        "tools_kwargs": {"search": {"query": _text(stream)}},
                        "interaction_kwargs": {"name": _text(stream, 1)},
                    },
                }
            )
            number += 1
        files.append(own)
    return files


def prompt_row(record: Record, extras: bool = True) -> Record:
    """Return the row of a record: its own columns, and what is said of its prompt and its tools, if anything is."""
    extra = record["extra_info"] if extras else {}
    return {
        "raw_prompt": record["prompt"],
        "index": extra.get("index", 0),
        "tools_kwargs": extra.get("tools_kwargs", {}),
        "interaction_kwargs": extra.get("interaction_kwargs", {}),
        **{name: record[name] for name in ("data_source", "reward_model")},
        "extra_info": extra,
    }


def _wrong(given: Any, right: Any, what: str) -> list[str]:
    error, place = difference(given, right)
    return [f"{what}: {place}"] if error else []


@DATA_SETS.law(
    "rows of several files",
    "a file that is left out, columns of another row, arguments of tools that are lost",
    excluded=without(PROMPTS),
    ways=({}, {"reloaded": True}),
)
@DATA_SETS.law(
    "the first rows",
    "another number, rows of the first file alone",
    excluded=without(PROMPTS),
    ways=({"max_samples": 7}, {"max_samples": 7, "reloaded": True}, {"max_samples": 99}, {"max_samples": -1}),
)
@DATA_SETS.law(
    "rows of other columns and formats",
    "a name or a format that is not read, facts of another row where one has none",
    excluded=without(PROMPTS),
    ways=({"prompt_key": "question"}, {"json": True}, {"extras": False}, {"extras": False, "json": True}),
)
@DATA_SETS.law(
    "rows of a divided data set",
    "a row in two parts, rows lost besides those that are left over",
    excluded=without(PROMPTS),
    ways=({"parts": 3}, {"parts": 4}),
)
def rows_are_those_of_the_files(stack: Any, case: Numbers, ways: Sequence[Mapping[str, Any]]) -> Measure:
    """Compare all rows with the records of the files."""
    wrong = []
    for way in ways:
        files = prompt_files(case)
        records = [record for own in files for record in own]
        limit = way.get("max_samples", -1)
        chosen = records[: limit if limit > 0 else len(records) - len(records) % way.get("parts", 1)]
        due = [prompt_row(record, way.get("extras", True)) for record in chosen]
        wrong += _wrong(stack.utilities[PROMPTS](files, dict(way)), due, str(way))
    return Measure.count(wrong, "rows that are not those of the files")


MEDIA = "messages with media"
PLACEHOLDERS = re.compile("(<image>|<video>)")


def _only(kinds: Sequence[str], text: str) -> str:
    """Return a text without placeholders of other kinds."""
    return "".join(
        piece
        for piece in PLACEHOLDERS.split(text)
        if piece[1:-1] in kinds or not PLACEHOLDERS.fullmatch(piece)
    )


@DATA_SETS.law(
    "messages with images and videos",
    "a medium of another place, text that is lost, a medium within another value",
    excluded=without(MEDIA),
)
def media_are_at_their_places(stack: Any, case: Numbers) -> Measure:
    """Compare the pieces of messages with their texts, in which each placeholder is the next medium of its kind."""
    turns = (
        "<image>What is this?",
        "First <video> and <image>, then <image><video>.",
        "Plain words.",
        "<video>",
    )
    wrong = []
    for kinds in (("image", "video"), ("image",), ("video",), ()):
        texts = [_only(kinds, text) for text in turns]
        media = {
            kind: [f"{kind} {number}" for number in range(sum(text.count(f"<{kind}>") for text in texts))]
            for kind in ("image", "video")
        }
        messages = [
            {"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)
        ]
        left = {kind: iter(names) for kind, names in media.items()}
        due = [
            [
                (piece[1:-1], next(left[piece[1:-1]])) if PLACEHOLDERS.fullmatch(piece) else ("text", piece)
                for piece in PLACEHOLDERS.split(text)
                if piece
            ]
            for text in texts
        ]
        given = stack.utilities[MEDIA](messages, media)
        wrong += [
            f"{text!r}: {one}" for text, one, right in zip(texts, given, due, strict=True) if one != right
        ]
    return Measure.count(wrong, "messages whose pieces are others")


def _drawn(stack: Any, case: Numbers, **options: Any) -> list[Record]:
    found: list[Record] = stack.utilities[PROMPTS](
        prompt_files(case, (20, 20)), {"max_samples": 12, "shuffle": True, **options}
    )
    return found


@DATA_SETS.law(
    "rows that are drawn",
    "the first rows in place of drawn ones, a row twice, a seed that is not read, other rows after a reload",
    excluded=without(PROMPTS),
)
def drawn_rows_follow_the_seed(stack: Any, case: Numbers) -> Measure:
    """Draw rows: each is a row of the files, once, and the seed alone decides which."""
    known = {
        100 + n: prompt_row(record)
        for n, record in enumerate(chain.from_iterable(prompt_files(case, (20, 20))))
    }
    first = _drawn(stack, case, seed=3)
    numbers = [row["index"] for row in first]
    wrong = [f"{len(numbers)} rows, 12 are due"] if len(numbers) != 12 else []
    wrong += ["a row comes twice"] if len(set(numbers)) != len(numbers) else []
    wrong += ["the first rows in their order"] if numbers == sorted(known)[:12] else []
    for row in first:
        wrong += _wrong(row, known[row["index"]], f"row {row['index']}")
    wrong += _wrong(_drawn(stack, case, seed=3), first, "the same seed")
    wrong += _wrong(_drawn(stack, case, seed=3, reloaded=True), first, "after a reload")
    others = [row["index"] for row in _drawn(stack, case, seed=4)]
    wrong += ["another seed gives the same rows"] if others == numbers else []
    return Measure.count(wrong, "drawn rows that are not as configured")


def pair_files(case: Numbers, sizes: Sequence[int] = (3, 2)) -> list[list[dict[str, str]]]:
    """Return the records of several files of pairs."""
    stream = random.Random(case.seed)
    return [
        [{name: _text(stream) for name in ("prompt", "chosen", "rejected")} for _ in range(size)]
        for size in sizes
    ]


PAIR_OPTIONS: Sequence[Mapping[str, Any]] = (
    {},
    {"add_eos": False},
    {"max_samples": 4},
    {"prompt_key": "question", "chosen_key": "better", "rejected_key": "worse"},
)
LONG = 96
"""Beyond every pair, in tokens."""


@DATA_SETS.law(
    "pairs of files",
    "chosen and rejected exchanged, a prompt left out, no end, an end twice",
    excluded=without(PAIRS),
)
def pairs_are_those_of_the_files(stack: Any, case: Numbers) -> Measure:
    """Compare the texts of shown tokens with prompt, answer and end; the rest is masked."""
    wrong = []
    for options in PAIR_OPTIONS:
        files = pair_files(case)
        end = "" if options.get("add_eos") is False else stack.end
        records = list(chain.from_iterable(files))[: options.get("max_samples")]
        due = [
            [record["prompt"] + record[name] + end for name in ("chosen", "rejected")] for record in records
        ]
        rows = stack.utilities[PAIRS](files, {"max_length": LONG, **options})
        given = [[stack.text_of(ids, mask) for ids, mask in row] for row in rows]
        wrong += _wrong(given, due, str(dict(options)))
        wrong += [
            f"{options}: a row of another length" for row in rows if any(len(ids) != LONG for ids, _ in row)
        ]
    return Measure.count(wrong, "pairs that are not those of the files")


@DATA_SETS.law(
    "pairs that are cut", "the other side is cut, a mask of another length", excluded=without(PAIRS)
)
def longer_pairs_are_cut(stack: Any, case: Numbers) -> Measure:
    """Compare rows of a few tokens with the first tokens of whole rows."""
    files, wrong = pair_files(case), []
    whole = stack.utilities[PAIRS](files, {"max_length": LONG})
    for limit in (3, 8):
        due = [[(ids[:limit], mask[:limit]) for ids, mask in row] for row in whole]
        wrong += _wrong(stack.utilities[PAIRS](files, {"max_length": limit}), due, f"{limit} tokens")
    return Measure.count(wrong, "pairs that are cut otherwise")
