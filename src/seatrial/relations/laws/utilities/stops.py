"""R31.stops: criteria of a stop stop the rows that they should."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of
from seatrial.relations.laws.utilities.scores import IDS, Options, ends_of

STOPS = relation_of(
    "stops",
    "stops-are-their-definition",
    "Each criterion stops the rows that its definition names, and no others.",
)
PIECES = ("a", "b", "st", "op", "s", "stop", "o", "p", "stopx", "to", "xst", "opb")
WRITTEN = (
    ("a", "stop"), ("a", "st", "op"), ("xst", "opb"), ("stop", "a"), ("st", "o", "p"), ("a", "stopx"), ("s", "to"),
    ("st", "a", "op"), ("stop", "st"), ("b", "a", "b"), ("op", "s"), ("a", "b", "a"),
)  # fmt: skip


def _stops(case: Numbers) -> Iterable[Arguments]:
    return [(WRITTEN, strings) for strings in (["stop"], ["ab"], ["stop", "ba"], ["tos", "p", "zz"])]


def stopped(rows: Sequence[Sequence[str]], strings: Sequence[str]) -> list[bool]:
    """Return for each row of pieces whether a string ends in its last piece."""
    found = []
    for row in rows:
        text, before = "".join(row), sum(len(piece) for piece in row[:-1])
        ends = {
            start + len(one) for one in strings for start in range(len(text)) if text.startswith(one, start)
        }
        found.append(any(end > before for end in ends))
    return found


WORDS = ("né", "日本", "a日", "éa", "本n", "日", "nn")


def _stops_of_bytes(case: Numbers) -> Iterable[Arguments]:
    """Yield words by their bytes, whole and without the last byte."""
    written = [word.encode() for word in WORDS]
    rows = [*written, *(word[:-1] for word in written)]
    return [(rows, strings) for strings in (["é"], ["本", "é"], ["日本", "nn"])]


def stopped_by_bytes(rows: Sequence[bytes], strings: Sequence[str]) -> list[bool]:
    """Return for each row of bytes whether a string ends in its last byte."""
    return [any(row.endswith(one.encode()) for one in strings) for row in rows]


CRITERIA: Sequence[tuple[str, Options]] = (
    *(("MaxLengthCriteria", {"max_length": length}) for length in (IDS - 1, IDS, IDS + 1)),
    *(("EosTokenCriteria", {"eos_token_id": end}) for end in (3, [4, 8], 2)),
)


def _ended_cases(case: Numbers) -> Iterator[Arguments]:
    ids = torch.randint(2, 9, (5, IDS), generator=case.generator())
    ids[:3, -1] = torch.tensor([3, 4, 8])
    return ((name, options, ids) for name, options in CRITERIA)


def ended(name: str, options: Options, ids: Tensor) -> list[bool]:
    """Return for each row whether a criterion stops it."""
    if name == "MaxLengthCriteria":
        return [ids.shape[1] >= options["max_length"]] * len(ids)
    return [row[-1] in ends_of(options) for row in ids.tolist()]


STOP_FUNCTIONS: Sequence[Plain] = (
    Plain(
        name="stopped by strings",
        law="strings that stop",
        suspects="a string that ends before the last piece, or goes beyond it",
        cases=_stops,
        right=stopped,
    ),
    Plain(
        name="stopped by bytes",
        law="strings of several bytes that stop",
        suspects="letters in place of bytes",
        cases=_stops_of_bytes,
        right=stopped_by_bytes,
    ),
    Plain(
        name="stopped",
        law="lengths and ends that stop",
        suspects="a limit off by one, the first of several ends alone",
        cases=_ended_cases,
        right=ended,
    ),
)
add_laws(STOPS, STOP_FUNCTIONS)
