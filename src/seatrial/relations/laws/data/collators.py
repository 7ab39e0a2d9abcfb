"""R15.collated: collators give what loops over plain lists give, for every option, side and kind of arrays."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from seatrial.relations.contracts.collators import CollatorPlan
from seatrial.relations.law import Measure, Relation

IGNORED = -100
STANDARD_ERRORS = 5.0
Row = Mapping[str, Any]
MakePlan = Callable[[Any, int, bool], CollatorPlan]


def plan(kind: str, *, labels: str = "", **more: Any) -> MakePlan:
    """Return a law's `cases`: rows of unequal lengths.

    Args:
        kind: of collator.
        labels: `one` a row, `many`, one for each id, or `others`, as many as another length; empty: none.
        more: of the plan.
    """

    def make(stack: Any, seed: int, tidy: bool) -> CollatorPlan:
        stream = random.Random(seed)
        rows = []
        for length, other in ((5, 3), (2, 6), (7, 1)):
            row: dict[str, Any] = {"input_ids": stream.choices(stack.ordinary_ids, k=5 if tidy else length)}
            if labels == "one":
                row["labels"] = stream.randrange(4)
            elif labels:
                number = len(row["input_ids"]) if labels == "many" else other
                row["labels"] = stream.choices(stack.ordinary_ids, k=number)
            rows.append(row)
        return CollatorPlan(kind=kind, rows=tuple(rows), seed=seed, **more)

    return make


COLLATED = Relation(
    id="R15.collated",
    name="collators-keep-rows",
    component="collators",
    statement="Ids, masks and labels of a batch are those of its rows; padding is on its side, to its multiple; a "
    "permutation's targets see no target after them.",
    cost="CPU, milliseconds",
    cases=plan("padding"),
)
SIDE = "padding on the other side, or seen as ids"
MULTIPLE = "a multiple that is ignored, or rounded down"
ARRAYS = "arrays of one kind that are made in another way"


def _padded(
    rows: Sequence[Sequence[int]], fill: int, case: CollatorPlan, longest: int = 0
) -> list[list[int]]:
    """Return rows of one width: the longest's, rounded up to the multiple that is configured, or the given maximum."""
    width = max(*map(len, rows), longest)
    multiple = case.options.get("pad_to_multiple_of") or 1
    width = math.ceil(width / multiple) * multiple
    gaps = [[fill] * (width - len(row)) for row in rows]
    return [
        [*gap, *row] if case.side == "left" else [*row, *gap] for row, gap in zip(rows, gaps, strict=True)
    ]


def _ids(rows: Sequence[Row]) -> list[list[int]]:
    return [list(row["input_ids"]) for row in rows]


def _inputs(stack: Any, case: CollatorPlan) -> dict[str, Any]:
    """Return padded ids and their mask."""
    longest = int(case.options.get("max_length", 0)) if case.options.get("padding") == "max_length" else 0
    return {
        "input_ids": _padded(_ids(case.rows), stack.pad_id, case, longest),
        "attention_mask": _padded([[1] * len(row) for row in _ids(case.rows)], 0, case, longest),
    }


def _compare(stack: Any, case: CollatorPlan, due: Mapping[str, Any]) -> Measure:
    found = stack.collated(case)
    wrong = [
        f"{name} {found.get(name)}, due {value}" for name, value in due.items() if found.get(name) != value
    ]
    return Measure.count(wrong, f"parts of a batch of {case.kind} that are not those of its rows")


LONG = {"padding": "max_length", "max_length": 11}


@COLLATED.law("padding on the right", SIDE)
@COLLATED.law("padding on the left", SIDE, cases=plan("padding", side="left"))
@COLLATED.law("padding to a multiple", MULTIPLE, cases=plan("padding", options={"pad_to_multiple_of": 8}))
@COLLATED.law(
    "padding on the left to a multiple",
    MULTIPLE,
    cases=plan("padding", side="left", options={"pad_to_multiple_of": 4}),
)
@COLLATED.law("padding to a length", "a length that is ignored", cases=plan("padding", options=LONG))
@COLLATED.law("padding of numpy arrays", ARRAYS, cases=plan("padding", side="left", returns="np"))
@COLLATED.law("one label a row", "labels of other rows", cases=plan("padding", labels="one"))
def padding_keeps_rows(stack: Any, case: CollatorPlan) -> Measure:
    """Compare padded ids, masks and labels with a loop."""
    labels = {"labels": [row["labels"] for row in case.rows]} if "labels" in case.rows[0] else {}
    return _compare(stack, case, {**_inputs(stack, case), **labels})


@COLLATED.law("labels of tokens", SIDE, cases=plan("token classes", labels="many"))
@COLLATED.law("labels of tokens on the left", SIDE, cases=plan("token classes", labels="many", side="left"))
@COLLATED.law(
    "labels of tokens, another filling",
    "a filling that is ignored",
    cases=plan("token classes", labels="many", options={"label_pad_token_id": -7, "pad_to_multiple_of": 4}),
)
@COLLATED.law("labels of tokens, numpy", ARRAYS, cases=plan("token classes", labels="many", returns="np"))
@COLLATED.law("sequences", SIDE, cases=plan("sequences", labels="others"))
@COLLATED.law("sequences on the left", SIDE, cases=plan("sequences", labels="others", side="left"))
@COLLATED.law(
    "sequences to a multiple, another filling",
    MULTIPLE,
    cases=plan("sequences", labels="others", options={"label_pad_token_id": -7, "pad_to_multiple_of": 4}),
)
@COLLATED.law(
    "sequences to a length",
    "a length that is ignored",
    cases=plan("sequences", labels="others", options=LONG),
)
@COLLATED.law("sequences, numpy", ARRAYS, cases=plan("sequences", labels="others", returns="np"))
def labels_are_padded_as_ids_are(stack: Any, case: CollatorPlan) -> Measure:
    """Compare labels, padded on the side of the ids, with a loop; those of tokens are as wide as the ids."""
    inputs = _inputs(stack, case)
    longest = len(inputs["input_ids"][0]) if case.kind == "token classes" else 0
    if case.kind == "sequences" and case.options.get("padding") == "max_length":
        longest = int(case.options["max_length"])
    fill = int(case.options.get("label_pad_token_id", IGNORED))
    labels = _padded([row["labels"] for row in case.rows], fill, case, longest)
    return _compare(stack, case, {**inputs, "labels": labels})


@COLLATED.law("next ids", "padding that trains", cases=plan("language modeling", options={"mlm": False}))
@COLLATED.law(
    "next ids on the left, to a multiple",
    "padding that trains",
    cases=plan("language modeling", side="left", options={"mlm": False, "pad_to_multiple_of": 8}),
)
@COLLATED.law(
    "next ids, numpy", ARRAYS, cases=plan("language modeling", options={"mlm": False}, returns="np")
)
def labels_are_the_ids(stack: Any, case: CollatorPlan) -> Measure:
    """Compare labels with the ids, without padding."""
    inputs = _inputs(stack, case)
    labels = _padded(_ids(case.rows), IGNORED, case, len(inputs["input_ids"][0]))
    return _compare(stack, case, {**inputs, "labels": labels})


def _choices(stack: Any, seed: int, tidy: bool) -> CollatorPlan:
    stream = random.Random(seed)
    rows = tuple(
        {
            "input_ids": [stream.choices(stack.ordinary_ids, k=size) for size in sizes],
            "attention_mask": [[1] * size for size in sizes],
            "labels": stream.randrange(3),
        }
        for sizes in ((3, 5, 2), (6, 1, 4))
    )
    return CollatorPlan(kind="choices", rows=rows, seed=seed)


@COLLATED.law("choices", "choices of other rows, a label of another row", cases=_choices)
def choices_stay_together(stack: Any, case: CollatorPlan) -> Measure:
    """Compare choices, padded to the longest of all rows, with a loop."""
    flat = [{"input_ids": choice} for row in case.rows for choice in row["input_ids"]]
    inputs = _inputs(stack, replace(case, rows=tuple(flat)))
    grouped = {
        name: [value[start : start + 3] for start in range(0, len(value), 3)]
        for name, value in inputs.items()
    }
    return _compare(stack, case, {**grouped, "labels": [row["labels"] for row in case.rows]})


def _plain(labels: str, returns: str) -> MakePlan:
    def make(stack: Any, seed: int, tidy: bool) -> CollatorPlan:
        stream = random.Random(seed)
        rows = tuple(
            {
                "input_ids": stream.choices(stack.ordinary_ids, k=4),
                labels: _label(stream, labels),
                "text": "left out",
                "nothing": None,
            }
            for _ in range(3)
        )
        return CollatorPlan(kind="default", rows=rows, seed=seed, returns=returns)

    return make


def _label(stream: random.Random, name: str) -> Any:
    return [stream.randrange(4) for _ in range(4)] if name == "label_ids" else stream.randrange(4)


@COLLATED.law("as they are, label", "a label that is left out", cases=_plain("label", "pt"))
@COLLATED.law("as they are, label_ids", "labels that are left out", cases=_plain("label_ids", "pt"))
@COLLATED.law("as they are, label, numpy", ARRAYS, cases=_plain("label", "np"))
def features_are_stacked(stack: Any, case: CollatorPlan) -> Measure:
    """Compare stacked features with the rows; labels come by any of their names."""
    name = next(name for name in case.rows[0] if name.startswith("label"))
    return _compare(
        stack,
        case,
        {
            "input_ids": _ids(case.rows),
            "labels": [row[name] for row in case.rows],
            "text": None,
            "nothing": None,
        },
    )


NUMBERS: Mapping[str, Any] = {"int64": np.int64, "int32": np.int32, "float32": np.float32}
"""Types of NumPy."""


def _typed(labels: str, kind: str, returns: str) -> MakePlan:
    """Return a law's `cases`: rows with labels of a type of NumPy."""
    made = _plain(labels, returns)

    def make(stack: Any, seed: int, tidy: bool) -> CollatorPlan:
        base = made(stack, seed, tidy)
        rows = tuple({**row, labels: _as(row[labels], NUMBERS[kind])} for row in base.rows)
        return replace(base, rows=rows)

    return make


def _as(value: Any, kind: Any) -> Any:
    return [kind(one) for one in value] if isinstance(value, list) else kind(value)


TYPES = "whole numbers that become others, or the reverse"


@COLLATED.law("labels of type int64", TYPES, cases=_typed("label", "int64", "pt"))
@COLLATED.law("labels of type int32, numpy", TYPES, cases=_typed("label", "int32", "np"))
@COLLATED.law("labels of type float32", TYPES, cases=_typed("label", "float32", "pt"))
@COLLATED.law("label_ids of type int64", TYPES, cases=_typed("label_ids", "int64", "pt"))
def labels_keep_their_type(stack: Any, case: CollatorPlan) -> Measure:
    """Check that whole numbers are collated to whole numbers, and others to others."""
    name = next(name for name in case.rows[0] if name.startswith("label"))
    found = np.asarray(stack.collated(case)["labels"])
    right = np.asarray([row[name] for row in case.rows])
    same = found.dtype.kind == right.dtype.kind and np.array_equal(found, right)
    return Measure.count(
        [] if same else [f"{found.tolist()}, due {right.tolist()}"], "labels of another type"
    )


def _weighted(stack: Any, seed: int, tidy: bool) -> CollatorPlan:
    base = plan("token classes", labels="many", returns="np")(stack, seed, tidy)
    return replace(base, rows=tuple({**row, "weight": place + 0.5} for place, row in enumerate(base.rows)))


@COLLATED.law("a weight of each row, numpy", "columns that become whole numbers", cases=_weighted)
def other_columns_keep_their_numbers(stack: Any, case: CollatorPlan) -> Measure:
    """Compare a number of each row with the batch's."""
    return _compare(stack, case, {"weight": [row["weight"] for row in case.rows]})


FLAT = {"return_flash_attn_kwargs": True, "return_seq_idx": True}


@COLLATED.law(
    "end to end", "a border that trains, positions that do not begin again", cases=plan("flattening")
)
@COLLATED.law(
    "end to end, labels", "labels of ids in place of the row's", cases=plan("flattening", labels="many")
)
@COLLATED.law(
    "end to end, lengths and numbers",
    "lengths without the first",
    cases=plan("flattening", options=FLAT),
)
@COLLATED.law(
    "end to end, other options",
    "an option that is ignored",
    cases=plan(
        "flattening", labels="many", options={"separator_id": -7, "return_position_ids": False, **FLAT}
    ),
)
@COLLATED.law(
    "end to end, another first position",
    "a first position that is ignored",
    cases=plan("flattening", options={"position_ids_start": 2, **FLAT}),
)
@COLLATED.law("end to end, numpy", ARRAYS, cases=plan("flattening", options=FLAT, returns="np"))
def rows_are_laid_end_to_end(stack: Any, case: CollatorPlan) -> Measure:
    """Compare one long row, its positions, borders and numbers with a loop."""
    ids = _ids(case.rows)
    labels = [list(row.get("labels", row["input_ids"])) for row in case.rows]
    separator = case.options.get("separator_id", IGNORED)
    first = case.options.get("position_ids_start", 0)
    due: dict[str, Any] = {
        "input_ids": [[token for row in ids for token in row]],
        "labels": [[token for row in labels for token in (separator, *row[1:])]],
    }
    due["position_ids"] = (
        [[first + place for row in ids for place in range(len(row))]]
        if case.options.get("return_position_ids", True)
        else None
    )
    if "return_seq_idx" in case.options:
        due["seq_idx"] = [[number for number, row in enumerate(ids) for _ in row]]
    if "return_flash_attn_kwargs" in case.options:
        lengths = list(map(len, ids))
        for side in ("q", "k"):
            due[f"cu_seq_lens_{side}"] = [0, *accumulate(lengths)]
            due[f"max_length_{side}"] = max(lengths)
    return _compare(stack, case, due)


def _long_rows(returns: str, **options: Any) -> MakePlan:
    def make(stack: Any, seed: int, tidy: bool) -> CollatorPlan:
        stream = random.Random(seed)
        rows = tuple({"input_ids": stream.choices(stack.ordinary_ids, k=size)} for size in (60, 60, 44) * 12)
        return CollatorPlan(kind="permutation", rows=rows, seed=seed, returns=returns, options=options)

    return make


@COLLATED.law("permutations", "targets that see themselves or later ones", cases=_long_rows("pt"))
@COLLATED.law(
    "permutations, another share",
    "a share that is ignored",
    cases=_long_rows("pt", plm_probability=0.4, max_span_length=3),
)
@COLLATED.law("permutations, numpy", ARRAYS, cases=_long_rows("np"))
def targets_see_no_later_target(stack: Any, case: CollatorPlan) -> Measure:
    """Check labels, masks of what each place may see, and the share of targets (Yang et al. 2019)."""
    batch = stack.collated(case)
    wrong, targets, places = [], 0, 0
    padded = _padded(_ids(case.rows), stack.pad_id, case)
    for number, (ids, seen, labels, hidden) in enumerate(
        zip(padded, batch["input_ids"], batch["labels"], batch["perm_mask"], strict=True)
    ):
        own = [place for place, label in enumerate(labels) if label != IGNORED]
        targets += len(own)
        places += sum(token != stack.pad_id for token in ids)
        for place, token in enumerate(ids):
            due = stack.mask_id if place in own else token
            if (
                seen[place] != due
                or (place in own and labels[place] != token)
                or (place in own and token == stack.pad_id)
            ):
                wrong.append(f"row {number}, place {place}: {seen[place]}, label {labels[place]} for {token}")
        for one in own:
            if not hidden[one][one]:
                wrong.append(f"row {number}: target {one} sees itself")
            wrong += [
                f"row {number}: {one} and {other} see each other"
                for other in own
                if other > one and not hidden[one][other] and not hidden[other][one]
            ]
        wrong += [
            f"row {number}: {place} is hidden and no target"
            for place in range(len(ids))
            if place not in own and any(line[place] for line in hidden)
        ]
    share = float(case.options.get("plm_probability", 1 / 6))
    spread = math.sqrt(share * (1 - share) * case.options.get("max_span_length", 5) / places)
    if abs(targets / places - share) > 0.15 * share + STANDARD_ERRORS * spread:
        wrong.append(f"{targets} targets of {places}, share {share:.3g}")
    return Measure.count(wrong, "places of permutations that are wrong")
