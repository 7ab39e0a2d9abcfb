"""R31.collated: batches of a stack's own collators have the rows' ids, labels, masks and scores, and padding apart."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, product
from typing import Any

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of
from seatrial.relations.not_served import NotServed

COLLATED = relation_of(
    "collated",
    "collators-keep-what-rows-have",
    "A batch has each row's ids, labels and masks where they belong, for any ids; the rest is padding.",
)
IGNORED, PAD = -100, 3
"""PAD is also an id of rows: where the end token pads, a mask that is made from ids hides it."""
LENGTHS = ((4, 2), (1, 5), (7, 3), (2, 1))
Row = dict[str, Any]
Columns = Mapping[str, Any]


def _ids(stream: random.Random, length: int) -> list[int]:
    return [stream.choice((PAD, *range(5, 40))) for _ in range(length)]


def _padded(
    rows: Sequence[Sequence[Any]], fill: Any, options: Mapping[str, Any], left: bool = False
) -> list[Any]:
    multiple = options.get("pad_to_multiple_of") or 1
    width = math.ceil(max(map(len, rows)) / multiple) * multiple
    gaps = [[fill] * (width - len(row)) for row in rows]
    return [[*gap, *row] if left else [*row, *gap] for row, gap in zip(rows, gaps, strict=True)]


def _cut(row: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    length = options.get("max_length")
    if length is None:
        return list(row)
    return list(row[-length:] if options.get("truncation_mode") == "keep_end" else row[:length])


def _answers(
    prompts: Sequence[list[int]], answers: Sequence[list[int]], options: Mapping[str, Any]
) -> Columns:
    """Return ids of prompts with answers, and the masks of both and of the answers."""
    rows = [_cut([*one, *other], options) for one, other in zip(prompts, answers, strict=True)]
    masks = [
        _cut([*[0] * len(one), *[1] * len(other)], options)
        for one, other in zip(prompts, answers, strict=True)
    ]
    return {
        "input_ids": _padded(rows, PAD, options),
        "attention_mask": _padded([[1] * len(row) for row in rows], 0, options),
        "completion_mask": _padded(masks, 0, options),
    }


def texts(rows: Sequence[Row], options: Mapping[str, Any]) -> Columns:
    """Return the batch of texts, with labels of their own or their ids."""
    ids = [row["input_ids"] for row in rows]
    labels = [row["labels"] if "labels" in row else row["input_ids"] for row in rows]
    places = [
        [place for length in row.get("seq_lengths", [len(row["input_ids"])]) for place in range(length)]
        for row in rows
    ]
    if not options.get("padding_free"):
        return {
            "input_ids": _padded(ids, PAD, options),
            "labels": _padded(labels, IGNORED, options),
            "attention_mask": _padded([[1] * len(one) for one in ids], 0, options),
            **({"position_ids": _padded(places, 0, options)} if options.get("return_position_ids") else {}),
        }
    (flat,) = _padded([[place for one in places for place in one]], 0, options)
    (trained,) = _padded([[label for one in labels for label in one]], IGNORED, options)
    starts = [number for number, place in enumerate(flat) if place == 0]
    ends = [*starts[1:], len(flat)]
    parts = [end - start for start, end in zip(starts, ends, strict=True)]
    return {
        "input_ids": _padded([[one for row in ids for one in row]], PAD, options),
        "labels": [[IGNORED if place == 0 else label for place, label in zip(flat, trained, strict=True)]],
        "position_ids": [flat],
        "cu_seq_lens_q": [0, *accumulate(parts)],
        "cu_seq_lens_k": [0, *accumulate(parts)],
        "max_length_q": max(parts),
        "max_length_k": max(parts),
        "seq_idx": [[number for number, length in enumerate(parts) for _ in range(length)]],
    }


def pairs(rows: Sequence[Row], options: Mapping[str, Any]) -> Columns:
    """Return the batch of pairs: chosen answers, then rejected ones, then answers to imitate if rows have them."""
    kinds = [name for name in ("chosen_ids", "rejected_ids", "reference_ids") if name in rows[0]]
    prompts = [row["prompt_ids"] for _ in kinds for row in rows]
    found = dict(_answers(prompts, [row[kind] for kind in kinds for row in rows], options))
    scores = [name for name in ("ref_chosen_logps", "ref_rejected_logps") if name in rows[0]]
    return {**found, **{name: [row[name] for row in rows] for name in scores}}


def labelled(rows: Sequence[Row], options: Mapping[str, Any]) -> Columns:
    """Return the batch of answers with labels, and of the mismatched answers."""
    prompts = [row["prompt_ids"] for row in rows]
    own = _answers(prompts, [row["completion_ids"] for row in rows], options)
    others = _answers(prompts, [row["KL_completion_ids"] for row in rows], options)
    scores = [name for name in ("ref_logps", "ref_KL_logps") if name in rows[0]]
    return {
        **own,
        **{f"KL_{name}": value for name, value in others.items()},
        **{name: [row[name] for row in rows] for name in ("label", *scores)},
    }


def scored(rows: Sequence[Row], options: Mapping[str, Any]) -> Columns:
    """Return the batch of pairs for a reward model."""
    ids = [row[name] for name in ("chosen_ids", "rejected_ids") for row in rows]
    return {
        "input_ids": _padded(ids, PAD, options),
        "attention_mask": _padded([[1] * len(one) for one in ids], 0, options),
        **({"margin": [row["margin"] for row in rows]} if "margin" in rows[0] else {}),
    }


FILLS = {"_input_ids": PAD, "_labels": IGNORED, "_attention_mask": 0}


def named(rows: Sequence[Row], options: Mapping[str, Any]) -> Columns:
    """Return the batch of columns whose names end in their kind; prompts alone are padded on the left."""
    found: dict[str, Any] = {}
    for name in rows[0]:
        fill = next((value for end, value in FILLS.items() if name.endswith(end)), None)
        values = [row[name] for row in rows]
        left = name in ("prompt_input_ids", "prompt_attention_mask")
        found[name] = values if fill is None else _padded(values, fill, {}, left)
    return found


DEFINITIONS: Mapping[str, Callable[[Sequence[Row], Mapping[str, Any]], Columns]] = {
    "texts": texts,
    "ids": texts,
    "pairs": pairs,
    "triples": pairs,
    "labelled": labelled,
    "scored": scored,
    "named": named,
}
MAYBE = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", "position_ids")
"""Columns that not every release gives; what a release gives of them is compared."""


def _parts(prompt: list[int], one: list[int], other: list[int]) -> Sequence[tuple[str, list[int], list[int]]]:
    """Return names, ids and labels of the parts of a pair, whose labels end before its ids."""
    return (("prompt", prompt, prompt), ("chosen", one, one[:-1]), ("rejected", other, other[:-1]))


def _rows(kind: str, stream: random.Random, *, more: bool) -> list[Row]:
    """Return rows of a kind; with more, those that it may have."""
    found = []
    for number, (long, short) in enumerate(LENGTHS):
        prompt, one, other = _ids(stream, long), _ids(stream, short), _ids(stream, long + 1 - number % 2)
        row: Row
        if kind == "texts":
            ids = prompt + one
            row = {"input_ids": ids}
            if more:
                row["labels"] = [IGNORED] * long + one
        elif kind == "labelled":
            row = {
                "prompt_ids": prompt,
                "completion_ids": one,
                "KL_completion_ids": other,
                "label": number % 3 == 0,
            }
            row |= {"ref_logps": -1.5 - number, "ref_KL_logps": 0.25 * number} if more else {}
        elif kind == "scored":
            row = {"chosen_ids": prompt, "rejected_ids": one} | ({"margin": 0.5 * number} if more else {})
        elif kind == "named":
            row = {
                f"{part}_{column}": value
                for part, ids, trained in _parts(prompt, one, other)
                for column, value in (
                    ("input_ids", ids), ("attention_mask", [1] * len(ids)), ("labels", [IGNORED, *trained][: len(ids)]),
                )
            }  # fmt: skip
            row |= {"ref_chosen_logps": -2.5 * number} if more else {}
            row |= {"question": f"text {number}"}
        else:
            row = {"prompt_ids": prompt, "chosen_ids": one, "rejected_ids": other}
            row |= {"reference_ids": other[::-1] + one} if kind == "triples" else {}
            row |= (
                {"ref_chosen_logps": -1.0 * number, "ref_rejected_logps": 0.5 + number}
                if more and kind == "pairs"
                else {}
            )
        found.append(row)
    return found


def _packed(stream: random.Random) -> list[Row]:
    """Return rows of several texts each, with their lengths."""
    rows = []
    for lengths in ([3, 1, 4], [2], [1, 1, 5]):
        ids = _ids(stream, sum(lengths))
        rows.append({"input_ids": ids, "labels": [IGNORED, *ids[1:]], "seq_lengths": lengths})
    return rows


CUTS = tuple(
    {"max_length": length, "truncation_mode": side}
    for length in (3, 6)
    for side in ("keep_start", "keep_end")
)
PLAIN: Sequence[Mapping[str, Any]] = ({}, {"pad_to_multiple_of": 4})

NONE = without("batch of rows")


def _lists(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


@COLLATED.law(
    "texts",
    "labels of other tokens, padding that is trained",
    kind="texts",
    options=PLAIN,
    excluded=NONE,
)
@COLLATED.law(
    "texts that are flattened",
    "a first token that is trained on the row before it, positions that run on",
    kind="texts",
    options=({"padding_free": True},),
    excluded=NONE,
)
@COLLATED.law(
    "pairs",
    "answers of other rows, a mask of the prompt",
    kind="pairs",
    options=(*PLAIN, *CUTS),
    excluded=NONE,
)
@COLLATED.law(
    "triples",
    "the answer to imitate left out or cut otherwise",
    kind="triples",
    options=(*PLAIN, *CUTS),
    excluded=NONE,
)
@COLLATED.law(
    "answers with labels",
    "mismatched answers that are the row's own, a prompt that is trained",
    kind="labelled",
    options=(*PLAIN, {"max_length": 3}, {"max_length": 6}),
    excluded=NONE,
)
@COLLATED.law(
    "pairs for a reward model",
    "margins of other rows",
    kind="scored",
    options=PLAIN,
    excluded=NONE,
)
@COLLATED.law(
    "columns by their names",
    "prompts padded on the right",
    kind="named",
    options=({},),
    excluded=NONE,
)
def batches_have_rows(stack: Any, case: Numbers, kind: str, options: Sequence[Mapping[str, Any]]) -> Measure:
    """Compare batches with loops over lists, with the columns that rows may have and without them.

    Raises:
        NotServed: the stack has no such collator.
    """
    given = []
    for more in (False, True):
        for chosen in options:
            given.append((_rows(kind, random.Random(case.seed), more=more), chosen))
    return _compare(stack, kind, given)


@COLLATED.law(
    "packed texts",
    "positions or borders of one row of several texts, or of the first batch",
    excluded=NONE,
)
def packed_texts_have_borders(stack: Any, case: Numbers) -> Measure:
    """Compare batches of rows of several texts each, flattened and padded with positions."""
    options = ({"padding_free": True}, {"return_position_ids": True})
    return _compare(stack, "texts", [(_packed(random.Random(case.seed)), one) for one in options])


WIDTHS = (4, 7)
FILLED: Mapping[str, Any] = {"input_ids": PAD, "labels": IGNORED, "attention_mask": 0, "position_ids": 0}


@COLLATED.law(
    "multiples of a length in each mode",
    "an option that is ignored where rows are flattened, padding that is trained",
    excluded=NONE,
)
def lengths_are_multiples(stack: Any, case: Numbers) -> Measure:
    """Compare batches whose length is to be a multiple with those without, padded and flattened, of texts and packs."""
    stream, wrong, found = random.Random(case.seed), [], 0
    reason: NotServed | None = None
    for rows in ([{"input_ids": _ids(stream, length)} for length, _ in LENGTHS], _packed(stream)):
        for mode, width in product(({}, {"padding_free": True}, {"return_position_ids": True}), WIDTHS):
            try:
                free, batch = (
                    stack.utilities["batch of rows"](
                        "ids", [dict(row) for row in rows], {**mode, **more}, PAD
                    )
                    for more in ({}, {"pad_to_multiple_of": width})
                )
            except NotServed as refused:
                reason = refused
                continue
            found += 1
            for name in sorted(set(FILLED) & set(free)):
                due = _padded(_lists(free[name]), FILLED[name], {"pad_to_multiple_of": width})
                if (given := _lists(batch.get(name))) != due:
                    wrong.append(f"{name} with {mode}, multiples of {width}: {given}, {due} is right")
    if not found:
        raise reason or NotServed("no rows")
    return Measure.count(wrong, "columns that are not those of the batch without the option, and padding")


def _compare(stack: Any, kind: str, given: Iterable[tuple[list[Row], Mapping[str, Any]]]) -> Measure:
    wrong, found, reason = [], 0, None
    for rows, options in given:
        due = DEFINITIONS[kind](rows, options)
        try:
            batch = stack.utilities["batch of rows"](kind, [dict(row) for row in rows], options, PAD)
        except NotServed as refused:
            reason = refused
            continue
        found += 1
        for name, value in due.items():
            if name in MAYBE and name not in batch:
                continue
            if _lists(batch.get(name)) != value:
                wrong.append(f"{name} with {dict(options)}: {_lists(batch.get(name))}, {value} is right")
    if not found:
        raise reason or NotServed("no rows")
    return Measure.count(wrong, f"columns of {kind} that are not the rows'")
