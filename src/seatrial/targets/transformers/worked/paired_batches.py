"""Pairs of options of Transformers' data collators: every batch is made again from the documentation."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from seatrial.relations.cases.pairwise import pairwise
from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.worked.calls_collators import tokenizer as bytes_tokenizer

LENGTHS = (4, 5, 2)
NUM_DRAWN = 250
START = 99
"""The id with which a decoder begins."""
Options = Mapping[str, Any]
Due = Mapping[str, Any]
COMMON: Mapping[str, Sequence[Any]] = {
    "side": ("right", "left"),
    "multiple": (None, 4, 5),
    "form": ("lists", "tensors", "arrays"),
    "returns": ("pt", "np"),
    "mask": (False, True),
    "extra": (False, True),
    "rows": (3, 1),
}
PADDED: Mapping[str, Sequence[Any]] = {
    **COMMON, "padding": (("longest", None), (True, 3), ("max_length", 9), ("max_length", 11)), "types": (False, True),
}  # fmt: skip


def _ids(row: int) -> list[int]:
    return [40 + (row * 5 + place * 3) % 30 for place in range(LENGTHS[row])]


def _as(form: str, value: Any) -> Any:
    if not isinstance(value, list) or form == "lists":
        return value
    return torch.tensor(value) if form == "tensors" else np.array(value)


def _columns(options: Options) -> list[dict[str, Any]]:
    """Return rows as lists: ids and, by the options, masks, types and a number."""
    rows = []
    for row in range(options["rows"]):
        ids = _ids(row)
        one: dict[str, Any] = {"input_ids": ids}
        if options["mask"]:
            one["attention_mask"] = [1] * (len(ids) - 1) + [0]
        if options.get("types"):
            one["token_type_ids"] = [0] + [1] * (len(ids) - 1)
        if options["extra"]:
            one["number"] = 7 + row
        rows.append(one)
    return rows


def _width(options: Options, lengths: Sequence[int]) -> int:
    width, multiple = max(lengths), options["multiple"]
    if "padding" in options and options["padding"][0] == "max_length":
        width = max(width, options["padding"][1])
    return width if multiple is None else -(-width // multiple) * multiple


def _filled(options: Options, values: Sequence[Any], width: int, fill: int) -> list[Any]:
    rest = [fill] * (width - len(values))
    return [*values, *rest] if options["side"] == "right" else [*rest, *values]


def _padded(options: Options, rows: Sequence[Mapping[str, Any]], pad: int) -> dict[str, Any]:
    """Return the columns of rows at the width of a batch, with a mask; numbers stay."""
    width = _width(options, [len(row["input_ids"]) for row in rows])
    ones = [{**row, "attention_mask": row.get("attention_mask", [1] * len(row["input_ids"]))} for row in rows]
    fills = {"input_ids": pad, "attention_mask": 0, "token_type_ids": 0, "special_tokens_mask": 1}
    return {
        name: [
            _filled(options, one[name], width, fills[name]) if name in fills else one[name] for one in ones
        ]
        for name in ones[0]
    }


def _collator(made: Any, options: Options, tokenizer: Any, **more: Any) -> Any:
    known = inspect.signature(made).parameters
    own = {"pad_to_multiple_of": options["multiple"], "return_tensors": options["returns"]}
    own |= dict(zip(("padding", "max_length"), options.get("padding", ()), strict=False))
    own = {name: value for name, value in own.items() if name in known}
    return made(tokenizer, **own, **more)


def _differs(found: Mapping[str, Any], due: Due, returns: str) -> str:
    """Return how a batch differs from the one that is due: its names, values or types."""
    kind = torch.Tensor if returns == "pt" else np.ndarray
    if {*found} != {*due}:
        return f"columns {sorted(found)}, {sorted(due)} are due"
    for name, right in due.items():
        value = found[name]
        if right is None or isinstance(right, int):
            if value != right:
                return f"{name} {value}, {right} is due"
        elif not isinstance(value, kind):
            return f"{name} is {type(value).__name__}"
        elif value.tolist() != right or (isinstance(right[0], list) and "int" not in str(value.dtype)):
            return f"{name} {value.tolist()} of {value.dtype}, {right} is due"
    return ""


def each(
    factors: Mapping[str, Sequence[Any]], pair: Callable[[Any, Options], Sequence[tuple[Any, Due]]], made: Any
) -> list[str]:
    """Return the options with which a batch is another one than is due, on the first call or the second."""
    wrong, refused, cases = [], [], _cases(factors)
    for options in cases:
        try:
            pairs = pair(made, options)
        except (TypeError, ValueError) as error:
            refused.append(
                str(error)
            )  # earlier releases flatten lists alone, and pad some columns of lists alone
            continue
        for call, (found, due) in enumerate(pairs):
            fault = _differs(dict(found), due, options["returns"])
            if fault:
                wrong.append(f"{options}, call {call + 1}: {fault}")
    if len(refused) > len(cases) * 0.75:
        raise NotServed(refused[0])
    return wrong[:4]


def _cases(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every pair of values, and combinations of more of them at random, always the same ones."""
    draw = random.Random(0)
    pairs = pairwise({name: len(values) for name, values in factors.items()}, lambda row: True)
    drawn = [
        {name: draw.randrange(len(values)) for name, values in factors.items()} for _ in range(NUM_DRAWN)
    ]
    return [{name: factors[name][index] for name, index in one.items()} for one in (*pairs, *drawn)]


def _twice(options: Options, collator: Any, rows: Sequence[Options], due: Due) -> list[tuple[Any, Due]]:
    """Return two batches of the same rows."""
    return [
        (collator([{name: _as(options["form"], value) for name, value in row.items()} for row in copy.deepcopy(rows)]),
         due)
        for _ in range(2)
    ]  # fmt: skip


def with_padding(made: Any, options: Options) -> list[tuple[Any, Due]]:
    """Return batches with a label a row."""
    tokenizer, rows = bytes_tokenizer(options["side"]), _columns(options)
    due = _padded(options, rows, int(tokenizer.pad_token_id))
    if options["label"] is not None:
        rows = [{**row, options["label"]: number % 2} for number, row in enumerate(rows)]
        due["labels"] = [number % 2 for number in range(len(rows))]
    return _twice(options, _collator(made, options, tokenizer), rows, due)


def of_tokens(made: Any, options: Options) -> list[tuple[Any, Due]]:
    """Return batches with a label a token."""
    tokenizer, rows = bytes_tokenizer(options["side"]), _columns(options)
    if options["label"] == "label" and "no_labels_features" not in inspect.getsource(made.numpy_call):
        options = {**options, "label": "labels"}  # earlier releases make arrays of both names
    due = _padded(options, rows, int(tokenizer.pad_token_id))
    if options["label"] is not None:
        width = len(due["input_ids"][0])
        due[options["label"]] = [
            _filled(options, [one % 3 for one in row["input_ids"]], width, options["fill"]) for row in rows
        ]
        rows = [{**row, options["label"]: [one % 3 for one in row["input_ids"]]} for row in rows]
    return _twice(options, _collator(made, options, tokenizer, label_pad_token_id=options["fill"]), rows, due)


def _started(labels: Any) -> Any:
    """Return labels one later, with a token to start."""
    return torch.cat([torch.full_like(labels[:, :1], START), labels[:, :-1]], dim=1)


def of_sequences(made: Any, options: Options) -> list[tuple[Any, Due]]:
    """Return batches with labels of their own length, and the inputs of a decoder where a model makes them."""
    tokenizer, rows = bytes_tokenizer(options["side"]), _columns(options)
    due = _padded(options, rows, int(tokenizer.pad_token_id))
    name, model = options["label"], None
    if name is None or options["lengths"] == "none":
        due["labels"] = None
        rows = rows if name is None else [{**row, name: None} for row in rows]
    else:
        labels = [_ids((row + 1) % 3)[:2] if options["lengths"] == "short" else [*_ids(row), 31, 32]
                  for row in range(len(rows))]  # fmt: skip
        width = _width(options, [len(one) for one in labels])
        due["labels"] = [_filled(options, one, width, options["fill"]) for one in labels]
        rows = [{**row, name: one} for row, one in zip(rows, labels, strict=True)]
        if options["decoder"] and options["returns"] == "pt":
            due["decoder_input_ids"] = [[START, *one[:-1]] for one in due["labels"]]
    if options["decoder"] and options["returns"] == "pt":
        model = SimpleNamespace(prepare_decoder_input_ids_from_labels=lambda labels: _started(labels))
    collator = _collator(made, options, tokenizer, label_pad_token_id=options["fill"], model=model)
    return _twice(options, collator, rows, due)


def of_choices(made: Any, options: Options) -> list[tuple[Any, Due]]:
    """Return batches of rows of several choices."""
    tokenizer, choices = bytes_tokenizer(options["side"]), options["choices"]
    flat = [
        {"input_ids": _ids((row + choice) % 3)} for row in range(options["rows"]) for choice in range(choices)
    ]
    if options["mask"]:
        flat = [{**one, "attention_mask": [1] * (len(one["input_ids"]) - 1) + [0]} for one in flat]
    if options["types"]:
        flat = [{**one, "token_type_ids": [1] * len(one["input_ids"])} for one in flat]
    groups = [flat[at : at + choices] for at in range(0, len(flat), choices)]
    due: dict[str, Any] = {
        name: [values[at : at + choices] for at in range(0, len(values), choices)]
        for name, values in _padded(options, flat, int(tokenizer.pad_token_id)).items()
    }
    due["labels"] = [row % choices for row in range(len(groups))]
    found: list[tuple[Any, Due]] = []
    for _ in range(2):
        rows = [
            {
                **{name: [list(one[name]) for one in group] for name in group[0]},
                options["label"]: row % choices,
            }
            for row, group in enumerate(groups)
        ]
        found.append((_collator(made, options, tokenizer)(rows), due))
    return found


MASKS: Mapping[str, Mapping[str, Any]] = {
    "none": {"mlm": False},
    "all masked": {"mlm_probability": 1.0, "mask_replace_prob": 1.0, "random_replace_prob": 0.0},
    "all kept": {"mlm_probability": 1.0, "mask_replace_prob": 0.0, "random_replace_prob": 0.0},
    "all drawn": {"mlm_probability": 1.0, "mask_replace_prob": 0.0, "random_replace_prob": 1.0},
    "nothing": {"mlm_probability": 0.0},
    "whole words": {"mlm_probability": 1.0, "whole_word_mask": True, "mask_replace_prob": 1.0,
                    "random_replace_prob": 0.0},
}  # fmt: skip


def modelled(made: Any, options: Options) -> list[tuple[Any, Due]]:
    """Return batches for language models, with the tokens that are masked."""
    tokenizer, kind = bytes_tokenizer(options["side"]), options["masks"]
    pad, special = int(tokenizer.pad_token_id), int(tokenizer.cls_token_id)
    if options["pad"] == "end of the text":
        tokenizer.pad_token = tokenizer.eos_token
        pad = int(tokenizer.eos_token_id)
    own = dict(MASKS[kind])
    if options["seed"] is not None:
        own["seed"] = options["seed"]
    rows = [{**row, "input_ids": [special, *row["input_ids"][1:]]} for row in _columns(options)]
    # A word begins where there is a gap in the text: rows have words of two tokens.
    words = kind == "whole words"
    if words or options["specials"]:
        rows = [{**row, "special_tokens_mask": [1, 1, *[0] * (len(row["input_ids"]) - 2)]} for row in rows]
    plain = options["plain"] and not words and (options["form"], options["returns"]) != ("tensors", "np")
    if plain:
        rows = [{"input_ids": row["input_ids"]} for row in rows]
    due = _padded(options, rows, pad)
    marked = due.pop("special_tokens_mask", None)
    ids = due["input_ids"]
    countable = (
        [[one not in (pad, special) for one in row] for row in ids]
        if marked is None
        else [[not one for one in row] for row in marked]
    )
    if kind == "none":
        due["labels"] = [[-100 if one == pad else one for one in row] for row in ids]
    else:
        chosen = countable if kind != "nothing" else [[False] * len(row) for row in ids]
        due["labels"] = [[one if is_chosen else -100 for one, is_chosen in zip(*pair, strict=True)]
                         for pair in zip(ids, chosen, strict=True)]  # fmt: skip
        if kind in ("all masked", "whole words"):
            mask = int(tokenizer.mask_token_id)
            due["input_ids"] = [[mask if is_chosen else one for one, is_chosen in zip(*pair, strict=True)]
                                for pair in zip(ids, chosen, strict=True)]  # fmt: skip
    if words:
        rows = [{**row, "offset_mapping": [(0, 0), *[(place + place // 2, place + place // 2 + 1)
                                                     for place in range(len(row["input_ids"]) - 1)]]}
                for row in rows]  # fmt: skip
        width = len(ids[0])
        rows = [{**row, "offset_mapping": _filled(options, row["offset_mapping"], width, (0, 0)),  # type: ignore[arg-type]
                 **{name: _filled(options, row[name], width, fill) for name, fill in
                    (("input_ids", pad), ("special_tokens_mask", 1), ("attention_mask", 0)) if name in row}}
                for row in rows]  # fmt: skip
        if not options["mask"]:
            due["attention_mask"] = [[1] * width for _ in rows]
    collator = _collator(made, options, tokenizer, **own)
    given = [row["input_ids"] for row in rows] if plain else rows
    found: list[tuple[Any, Due]] = []
    for _ in range(2):
        batch = dict(
            collator(
                [_as(options["form"], row) for row in copy.deepcopy(given)]
                if plain
                else [{name: _as(options["form"], value) for name, value in row.items()} for row in given]
            )
        )
        if kind == "all drawn":
            drawn = batch["input_ids"].tolist()
            kept = [[one if is_chosen else other for one, other, is_chosen in zip(*three, strict=True)]
                    for three in zip(ids, drawn, countable, strict=True)]  # fmt: skip
            inside = all(0 <= one < len(tokenizer) for row in drawn for one in row)
            same = sum(one == other for row, its in zip(ids, drawn, strict=True)
                       for one, other in zip(row, its, strict=True))  # fmt: skip
            total = sum(map(sum, countable))
            few = sum(map(len, ids)) - total / 2 if total > 3 else sum(map(len, ids))
            kept = kept if inside and (same < few or total <= 3) else [[-1]]
            batch["input_ids"] = torch.tensor(kept) if options["returns"] == "pt" else np.array(kept)
        found.append(
            (batch, {name: value for name, value in due.items() if not plain or name != "attention_mask"})
        )
    return found


def end_to_end(made: Any, options: Options) -> list[tuple[Any, Due]]:
    """Return rows in one, with their places, numbers and bounds."""
    source = inspect.getsource(made.__call__)
    if "tolist" not in source:
        options = {**options, "form": "lists"}
    rows = _columns({**options, "mask": False})
    if options["labels"]:
        rows = [{**row, "labels": [one + 1 for one in row["input_ids"]]} for row in rows]
    if options["empty"] and "every example is empty" in source:
        rows.insert(1, {name: ([] if isinstance(value, list) else value) for name, value in rows[0].items()})
    names = {
        "return_position_ids": options["places"],
        "return_flash_attn_kwargs": options["bounds"],
        "return_seq_idx": options["numbers"],
        "separator_id": options["separator"],
        "return_tensors": options["returns"],
    }
    if options["first"]:
        if "position_ids_start" not in inspect.signature(made.__init__).parameters:
            options = {**options, "first": 0}
        else:
            names["position_ids_start"] = options["first"]
    full = [row for row in rows if row["input_ids"]]
    lengths = [len(row["input_ids"]) for row in full]
    due: dict[str, Any] = {"input_ids": [[one for row in full for one in row["input_ids"]]]}
    separator = options["separator"] if options["of call"] is None else options["of call"]
    due["labels"] = [[one for row in full for one in [separator, *row.get("labels", row["input_ids"])[1:]]]]
    if options["places"]:
        due["position_ids"] = [[options["first"] + place for one in lengths for place in range(one)]]
    if options["numbers"]:
        due["seq_idx"] = [[number for number, one in enumerate(lengths) for _ in range(one)]]
    if options["bounds"]:
        due["cu_seq_lens_q"] = due["cu_seq_lens_k"] = [sum(lengths[:end]) for end in range(len(lengths) + 1)]
        due["max_length_q"] = due["max_length_k"] = max(lengths)
    collator = made(**names)
    more = {} if options["of call"] is None else {"separator_id": options["of call"]}
    return [
        (
            collator(
                [{name: _as(options["form"], value) for name, value in row.items()} for row in rows], **more
            ),
            due,
        )
        for _ in range(2)
    ]
