"""Worked examples of functions of data sets: packs of several columns, parts and chunks; pairs of several parts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from seatrial.targets.common.known import KnownFailure, between
from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.trl.former import FUNCTIONS
from seatrial.targets.trl.worked.rows import Row
from seatrial.targets.trl.worked.seen import or_refused

DATA = "trl.data_utils"
ROWS = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10], [11]]
PACKED: Mapping[str, Sequence[Sequence[int]]] = {
    "bfd": [[1, 2, 3, 4], [8, 9, 10, 11], [6, 7]],
    "bfd_split": [[1, 2, 3, 4], [8, 9, 10, 5], [6, 7, 11]],
    "wrapped": [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11]],
}
"""`ROWS` in packs of four, as the documentation of `pack_dataset` has them."""
IN_TWOS: Mapping[str, Sequence[Sequence[int]]] = {
    "bfd": [[1, 2, 3, 4], [6, 7], [8, 9, 10, 11]],
    "bfd_split": [[1, 2, 3, 4], [6, 7, 5], [8, 9, 10, 11]],
    "wrapped": [[1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11]],
}
"""The same, where two rows are packed at a time."""
SINCE = "1.0"
"""The first release that has these strategies under these names, and drops empty rows."""
SLICED = KnownFailure(
    "packs that are filled to the brim have the first rows of a table in place of a slice's",
    finding=FUNCTIONS,
    releases=between("trl", "1.0", "1.14"),
)
SLICES = ("rows of the middle", "two rows at a time")


def _set(rows: Sequence[Sequence[int]]) -> Any:
    """Return a data set of ids and labels, which are the ids below zero."""
    from datasets import Dataset

    labels = [[-one for one in row] for row in rows]
    return Dataset.from_dict({"input_ids": list(rows), "labels": labels})


def _in_chunks() -> Any:
    from datasets import concatenate_datasets

    return concatenate_datasets([_set(ROWS[:1]), _set(ROWS[1:3]), _set(ROWS[3:])])


def _in_parts() -> Any:
    from datasets import DatasetDict

    return DatasetDict({"one": _set(ROWS[::-1]), "two": _set(ROWS)})


FORMS: Mapping[str, Callable[[], Any]] = {
    "a table": lambda: _set(ROWS),
    "a table with empty rows": lambda: _set([[], *ROWS[:2], [], *ROWS[2:]]),
    "a table of chunks": _in_chunks,
    "rows that are picked": lambda: _set([ROWS[2], ROWS[3], ROWS[0], ROWS[1], [99]]).select([2, 3, 0, 1]),
    "rows of the middle": lambda: _set([[97, 98], *ROWS, [99]]).select(range(1, 5)),
    "several parts": _in_parts,
    "a stream": lambda: _set(ROWS).to_iterable_dataset(),
    "a table in a format": lambda: _set(ROWS).with_format("numpy"),
}
"""The same rows, in data sets of every form."""


def _packed(
    make: Callable[[], Any], strategy: str, options: Mapping[str, Any], pack: Callable[..., Any]
) -> Any:
    """Return the packs, and what is wrong with their labels and lengths."""
    found = pack(make(), 4, strategy, **options)
    found = list((found["two"] if hasattr(found, "keys") else found).with_format(None))
    ids = [list(one["input_ids"]) for one in found]
    wrong = [f"{one}" for one in found if list(one["labels"]) != [-value for value in one["input_ids"]]]
    if strategy != "wrapped":
        wrong += [
            f"{one}"
            for one in found
            if "seq_lengths" in one and sum(one["seq_lengths"]) != len(one["labels"])
        ]
    return [ids, wrong]


def _format(strategy: str, pack: Callable[..., Any]) -> list[Any]:
    """Return the format of packs of a table that has one for some of its columns."""
    found = pack(_set(ROWS).with_format("numpy", columns=["input_ids"]), 4, strategy).format
    return [found["type"], sorted(found["columns"])]


PAIRS = {"prompt": ["p", "q"], "chosen": ["a", "b"], "rejected": ["c", "d"], "kept": [1, 2]}
UNPAIRED = [("p", "a", True, 1), ("q", "b", True, 2), ("p", "c", False, 1), ("q", "d", False, 2)]


def _parts_of_pairs(unpair: Callable[..., Any]) -> list[Any]:
    """Return rows of several parts, of a stream, and of a data set that has no pairs."""
    from datasets import Dataset, DatasetDict

    def rows(data: Any) -> list[Any]:
        return [(one["prompt"], one["completion"], one["label"], one.get("kept")) for one in data]

    pairs = Dataset.from_dict(PAIRS)
    parts = unpair(DatasetDict({"one": pairs, "two": pairs.select([1])}))
    return [rows(parts["one"]), rows(parts["two"]), rows(unpair(pairs, desc="said"))]


RIGHT_PARTS = [UNPAIRED, [UNPAIRED[1], UNPAIRED[3]], UNPAIRED]


def _cloned(options: Mapping[str, Any], new: int, clone: Callable[..., Any]) -> list[Any]:
    """Return the rows of embeddings and of the head, the tokens of the tokenizer and the added ones, and its end."""
    target, source = tiny_tokenizer(), tiny_tokenizer()
    tokens = [f"<new{number}>" for number in range(new)]
    source.add_tokens(tokens, special_tokens=True)
    model, size = tiny_model(target, 0), len(target)
    with tempfile.TemporaryDirectory() as folder:
        source.save_pretrained(folder)
        model, target, added = clone(model, target, folder, **options)
    return [
        model.get_input_embeddings().weight.shape[0] - size,
        model.get_output_embeddings().weight.shape[0] - size,
        model.config.vocab_size - size,
        len(target.vocab) - size,
        sorted(one - size for one in added),
        [target.convert_tokens_to_ids(one) - size for one in tokens],
    ]


CLONES = "trl.chat_template_utils:clone_chat_template trl.models.utils:clone_chat_template"


def _clone(what: str, options: Mapping[str, Any], new: int, rows: int) -> Row:
    right = [rows, rows, rows, rows, list(range(rows)), list(range(new))]
    return Row("chats", CLONES, what, partial(_cloned, options, new), right, "0.26")


PACKS = f"{DATA}:pack_dataset"


def _pack(strategy: str, what: str, call: Callable[..., Any], right: Any) -> Row:
    known = SLICED if strategy == "wrapped" and what in SLICES else None
    return Row("batches", PACKS, f"{strategy}, {what}", or_refused(call), right, SINCE, known)


SET_ROWS: Sequence[Row] = (
    *(
        _pack(strategy, what, partial(_packed, make, strategy, {}), [right, []])
        for strategy, right in PACKED.items()
        for what, make in FORMS.items()
    ),
    *(
        _pack(
            strategy,
            SLICES[1],
            partial(_packed, FORMS["a table"], strategy, {"map_kwargs": {"batch_size": 2}}),
            [right, []],
        )
        for strategy, right in IN_TWOS.items()
    ),
    *(
        _pack(strategy, "a format of some columns", partial(_format, strategy), right)
        for strategy, right in (
            ("bfd", ["numpy", ["input_ids", "seq_lengths"]]),
            ("wrapped", ["numpy", ["input_ids"]]),
        )
    ),
    Row(
        "files",
        f"{DATA}:unpair_preference_dataset",
        "parts, columns of their own",
        _parts_of_pairs,
        RIGHT_PARTS,
        "1.8",
    ),
    _clone("no new token, to the next multiple of 64", {}, 0, 60),
    _clone("one new token, as many rows as tokens", {"resize_to_multiple_of": None}, 1, 1),
    _clone("three new tokens, to the next multiple of 8", {"resize_to_multiple_of": 8}, 3, 4),
)
