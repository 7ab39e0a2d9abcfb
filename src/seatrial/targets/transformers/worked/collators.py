"""Worked examples of Transformers' data collators: rows in other forms, columns of other names, and what is refused."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from seatrial.relations.contracts.worked import Refused
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.worked_rows import Row

ROWS = ([5, 6, 7], [8], [9, 5])
LABELS = ([1, 2, 3], [4], [5, 6])
IGNORED = -100


def _tokenizer(side: str = "right", masked: bool = False) -> Any:
    tokenizer = tiny_tokenizer(padding_side=side)
    if masked:
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
    return tokenizer


def _pad() -> int:
    return int(_tokenizer().pad_token_id)


def _lists(batch: Any) -> dict[str, Any]:
    """Return a batch as lists, its padding ids as "pad"."""
    pad = _pad()

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(one) for one in value]
        return "pad" if value == pad else value

    plain = {
        name: value.tolist() if hasattr(value, "tolist") else value for name, value in dict(batch).items()
    }
    return {
        name: named(value) if name in ("input_ids", "decoder_input_ids") else value
        for name, value in plain.items()
    }


def _as(form: str, values: Sequence[int]) -> Any:
    made: Any = {"list": list, "tensor": torch.tensor, "array": np.array}[form]
    return made(list(values))


def _columns(form: str, label: str | None, labels: Sequence[Sequence[int]] = LABELS) -> list[dict[str, Any]]:
    return [
        {"input_ids": list(ids)} | ({} if label is None else {label: _as(form, own)})
        for ids, own in zip(ROWS, labels, strict=True)
    ]


PADDED = {
    "input_ids": [[5, 6, 7], [8, "pad", "pad"], [9, 5, "pad"]],
    "attention_mask": [[1, 1, 1], [1, 0, 0], [1, 1, 0]],
}
RIGHT = [[1, 2, 3], [4, IGNORED, IGNORED], [5, 6, IGNORED]]
LEFT = [[1, 2, 3], [IGNORED, IGNORED, 4], [IGNORED, 5, 6]]
ON_THE_LEFT = {
    "input_ids": [[5, 6, 7], ["pad", "pad", 8], ["pad", 9, 5]], "attention_mask": [[1, 1, 1], [0, 0, 1], [0, 1, 1]],
}  # fmt: skip


def _classes(returns: str, form: str, collator: Any) -> list[Any]:
    """Return batches of classes of tokens by each name of labels and on each side, and one without labels."""
    found: list[Any] = [
        _lists(collator(tokenizer=_tokenizer(side), return_tensors=returns)(_columns(form, label)))
        for label, side in (("labels", "right"), ("label", "left"), (None, "right"))
    ]
    kinds = collator(tokenizer=_tokenizer(), return_tensors=returns)(_columns(form, "labels"))["labels"].dtype
    return [*found, str(kinds).rpartition(".")[2]]


CLASSES = [{**PADDED, "labels": RIGHT}, {**ON_THE_LEFT, "label": LEFT}, PADDED, "int64"]


def _sequences(returns: str, form: str, collator: Any) -> list[Any]:
    """Return batches of sequences by each name of labels and side, with None for labels, and without labels."""
    found: list[Any] = []
    long = ([1, 2, 3, 4], [5], [6, 7])
    for label, side, options in (
        ("labels", "right", {}), ("label", "left", {}), ("labels", "right", {"pad_to_multiple_of": 3}),
        ("labels", "right", {"padding": "max_length", "max_length": 5, "label_pad_token_id": -7}),
    ):  # fmt: skip
        batch = collator(tokenizer=_tokenizer(side), return_tensors=returns, **options)(
            _columns(form, label, long)
        )
        found.append(_lists(batch)["labels"])
    rows = [{"input_ids": [5, 6], "labels": None}, {"input_ids": [7, 8], "labels": None}]
    for given in (rows, [{"input_ids": [5, 6]}]):
        found.append(_lists(collator(tokenizer=_tokenizer(), return_tensors=returns)(given)).get("labels"))
    return found


SEQUENCES = [
    [[1, 2, 3, 4], [5, *[IGNORED] * 3], [6, 7, IGNORED, IGNORED]], [[1, 2, 3, 4], [*[IGNORED] * 3, 5], [IGNORED,
        IGNORED, 6, 7]],
    [[1, 2, 3, 4, *[IGNORED] * 2], [5, *[IGNORED] * 5], [6, 7, *[IGNORED] * 4]],
    [[1, 2, 3, 4, -7], [5, *[-7] * 4], [6, 7, -7, -7, -7]], None, None,
]  # fmt: skip


def _decoded(collator: Any) -> list[Any]:
    """Return the inputs of a decoder, which a model makes of padded labels; without a model, none."""
    seen: list[Any] = []

    def prepared(labels: Any) -> Any:
        seen.append(labels.tolist())
        return labels.masked_fill(labels == IGNORED, 99).roll(1)

    model = SimpleNamespace(prepare_decoder_input_ids_from_labels=prepared)
    found = _lists(collator(tokenizer=_tokenizer(), model=model)(_columns("list", "labels")))
    plain = collator(tokenizer=_tokenizer(), model=SimpleNamespace())(_columns("list", "labels"))
    without = collator(tokenizer=_tokenizer(), model=model)(_columns("list", None))
    return [found["decoder_input_ids"], seen, sorted(plain), sorted(without)]


def _unpadded(collator: Any) -> list[Any]:
    """Return labels of rows of one length that are not padded."""
    rows = [{"input_ids": [5, 6], "labels": [1, 2]}, {"input_ids": [7, 8], "labels": [3, 4]}]
    found = [
        collator(tokenizer=_tokenizer(), padding=value)(rows)["labels"].tolist()
        for value in (False, "do_not_pad")
    ]
    arrays = [{**row, "labels": np.array(row["labels"])} for row in rows]
    return [*found, collator(tokenizer=_tokenizer(), padding=False)(arrays)["labels"].tolist()]


def _untouched(options: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], collator: Any) -> list[str]:
    """Return which columns of rows a collator changes, and where a second batch of the same rows is another."""
    tokens = (
        {"tokenizer": _tokenizer(masked=True)}
        if "tokenizer" in inspect.signature(collator).parameters
        else {}
    )
    given = [
        {name: list(value) if isinstance(value, list) else value for name, value in row.items()}
        for row in rows
    ]
    made = collator(**tokens, **options)
    first, second = _lists(made(given)), _lists(made(given))
    wrong = [
        f"row {place}: {row}" for place, (row, due) in enumerate(zip(given, rows, strict=True)) if row != due
    ]
    return wrong + ([] if first == second else [f"{first} and then {second}"])


LABELLED = tuple(_columns("list", "labels"))
CHOICES = (
    {"input_ids": [[5, 6], [7]], "label": 1}, {"input_ids": [[8], [9, 5, 6]], "label": 0},
)  # fmt: skip
UNTOUCHED: Sequence[tuple[str, Mapping[str, Any], Sequence[Mapping[str, Any]]]] = (
    ("DataCollatorForTokenClassification", {}, LABELLED), ("DataCollatorForSeq2Seq", {}, LABELLED),
    ("DataCollatorWithPadding", {}, _columns("list", None)), ("DataCollatorForLanguageModeling", {"mlm": False},
        _columns("list", None)),
    ("DataCollatorForMultipleChoice", {}, CHOICES), ("DefaultDataCollator", {}, [{"a": [1, 2], "label": 1}, {"a": [3,
        4], "label": 0}]),
    ("DataCollatorWithFlattening", {"return_flash_attn_kwargs": True}, LABELLED),
)  # fmt: skip


def _chosen(collator: Any) -> list[Any]:
    """Return a batch of choices by the other name of labels, on the left and to a multiple."""
    found = _lists(
        collator(tokenizer=_tokenizer("left"), pad_to_multiple_of=4)([dict(row) for row in CHOICES])
    )
    return [found["input_ids"], found["attention_mask"], found["labels"], sorted(found)]


CHOSEN = [
    [[["pad", "pad", 5, 6], ["pad", "pad", "pad", 7]], [["pad", "pad", "pad", 8], ["pad", 9, 5, 6]]],
    [[[0, 0, 1, 1], [0, 0, 0, 1]], [[0, 0, 0, 1], [0, 1, 1, 1]]], [1, 0], ["attention_mask", "input_ids", "labels"],
]  # fmt: skip


def _modelled(returns: str, collator: Any) -> list[Any]:
    """Return batches of ids that come in lists, tensors, arrays and columns, on each side and to a multiple."""
    found = []
    for rows, side, options in (
        ([list(ids) for ids in ROWS], "right", {}), ([_as("tensor" if returns == "pt" else "array",
            ids) for ids in ROWS], "left", {}),
        ([_as("array", ids) for ids in ROWS], "right", {"pad_to_multiple_of": 4}),
            ([{"input_ids": list(ids)} for ids in ROWS], "left", {}),
        ([[5, 6], [7, 8]], "right", {}), ([[5, 6], [7, 8]], "right", {"pad_to_multiple_of": 3}),
    ):  # fmt: skip
        batch = _lists(
            collator(tokenizer=_tokenizer(side), mlm=False, return_tensors=returns, **options)(rows)
        )
        found.append([batch["input_ids"], batch["labels"]])
    return found


def _ids(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Return ids with padding, and their labels."""
    return [[list(row) for row in rows], [[IGNORED if one == "pad" else one for one in row] for row in rows]]


MODELLED = [
    _ids([[5, 6, 7], [8, "pad", "pad"], [9, 5, "pad"]]), _ids([[5, 6, 7], ["pad", "pad", 8], ["pad", 9, 5]]),
    _ids([[5, 6, 7, "pad"], [8, "pad", "pad", "pad"], [9, 5, "pad", "pad"]]), _ids([[5, 6, 7], ["pad", "pad", 8],
        ["pad", 9, 5]]),
    _ids([[5, 6], [7, 8]]), _ids([[5, 6, "pad"], [7, 8, "pad"]]),
]  # fmt: skip


def _masked(collator: Any) -> list[Any]:
    """Return batches whose ids are all masked but special ones, all kept as labels, and none masked."""
    tokenizer = _tokenizer(masked=True)
    rows = [
        {"input_ids": [5, 6, 7], "special_tokens_mask": [1, 0, 0]},
        {"input_ids": [8, 9, 5], "special_tokens_mask": [0, 0, 1]},
    ]
    made = collator(tokenizer=tokenizer, mlm_probability=1.0, mask_replace_prob=1.0, random_replace_prob=0.0)
    batch = _lists(made([dict(row) for row in rows]))
    mask = int(tokenizer.mask_token_id)
    found = [
        [["mask" if one == mask else one for one in row] for row in batch["input_ids"]],
        batch["labels"],
        sorted(batch),
    ]
    kept = collator(tokenizer=tokenizer, mlm_probability=1.0, mask_replace_prob=0.0, random_replace_prob=0.0)
    batch = _lists(kept([dict(row) for row in rows]))
    found += [batch["input_ids"], batch["labels"]]
    none = _lists(collator(tokenizer=tokenizer, mlm_probability=0.0)([dict(row) for row in rows]))
    return [*found, none["input_ids"], none["labels"]]


OTHERS = [[IGNORED, 6, 7], [8, 9, IGNORED]]
MASKED = [
    [[5, "mask", "mask"], ["mask", "mask", 5]], OTHERS, ["attention_mask", "input_ids", "labels"], [[5, 6, 7], [8, 9,
        5]], OTHERS,
    [[5, 6, 7], [8, 9, 5]], [[IGNORED] * 3] * 2,
]  # fmt: skip
UNFIT: Sequence[tuple[str, Mapping[str, Any], str]] = (
    ("a share above 1", {"mlm_probability": 1.5}, "mlm_probability should be between"),
    ("a share below 0", {"mlm_probability": -0.5}, "mlm_probability should be between"),
    ("shares that are more than all", {"mask_replace_prob": 0.8, "random_replace_prob": 0.3}, "should not exceed 1"),
    ("a share of masks below 0", {"mask_replace_prob": -0.1}, "mask_replace_prob should be between"),
    ("a share of random ids below 0", {"random_replace_prob": -0.1}, "random_replace_prob should be between"),
    ("whole words that are not masked", {"mlm": False, "whole_word_mask": True}, "Whole word masking"),
)  # fmt: skip


def _unfit(options: Mapping[str, Any], collator: Any) -> Any:
    missing = {*options} - {*inspect.signature(collator).parameters}
    if missing:
        raise NotServed(f"this release has no {', '.join(sorted(missing))}")
    return collator(tokenizer=_tokenizer(masked=True), **options)


def _flat(collator: Any) -> list[Any]:
    """Return rows end to end, one of them empty, with a separator of one call, and types of columns."""
    rows = [
        {"input_ids": torch.tensor([5, 6]), "labels": torch.tensor([1, 2])},
        {"input_ids": [], "labels": []},
        {"input_ids": [7, 8, 9], "labels": [3, 4, 5]},
    ]
    made = collator(return_flash_attn_kwargs=True, return_seq_idx=True)
    batch = made(rows, separator_id=-7)
    plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in batch.items()}
    kinds = {
        name: str(value.dtype).rpartition(".")[2] for name, value in batch.items() if hasattr(value, "dtype")
    }
    again = made([{"input_ids": [5, 6]}])["labels"].tolist()
    return [plain, kinds, again]


FLAT = [
    {
        "input_ids": [[5, 6, 7, 8, 9]], "labels": [[-7, 2, -7, 4, 5]], "position_ids": [[0, 1, 0, 1, 2]],
            "seq_idx": [[0, 0, 1, 1, 1]],
        "cu_seq_lens_q": [0, 2, 5], "cu_seq_lens_k": [0, 2, 5], "max_length_q": 3, "max_length_k": 3,
    },
    {
        "input_ids": "int64", "labels": "int64", "position_ids": "int64", "seq_idx": "int32",
            "cu_seq_lens_q": "int32", "cu_seq_lens_k": "int32",
    },
    [[IGNORED, 6]],
]  # fmt: skip


def _default(returns: str, function: Any) -> list[Any]:
    """Return batches of plain columns: labels by each name, of each kind; texts and None are left out."""
    found = []
    for rows in (
        [{"a": [1, 2], "label": 1}, {"a": [3, 4], "label": 0}], [{"a": [1, 2], "label": 0.5}, {"a": [3, 4],
            "label": 2.0}],
        [{"a": [1.5], "label_ids": [1, 2]}, {"a": [2.5], "label_ids": [3, 4]}], [{"label_ids": [0.5]},
            {"label_ids": [1.0]}],
        [{"a": torch.tensor([1, 2]), "b": "word", "c": None}, {"a": torch.tensor([3, 4]), "b": "word", "c": None}],
        [{"a": np.array([1.5, 2.5]), "label": np.int64(1)}, {"a": np.array([3.5, 4.5]), "label": np.int64(0)}],
        [{"label": None, "label_ids": None, "a": 1}, {"label": None, "label_ids": None, "a": 2}],
        [SimpleNamespace(a=[1], label=1), SimpleNamespace(a=[2], label=0)],
    ):  # fmt: skip
        batch = function(rows, return_tensors=returns)
        found.append(
            {
                name: [
                    value.tolist(),
                    value.dtype.is_floating_point if returns == "pt" else value.dtype.kind == "f",
                ]
                for name, value in batch.items()
            }
        )
    return found


WHOLE = [[1, 2], [3, 4]]
DEFAULT = [
    {"labels": [[1, 0], False], "a": [WHOLE, False]}, {"labels": [[0.5, 2.0], True], "a": [WHOLE, False]},
    {"labels": [WHOLE, False], "a": [[[1.5], [2.5]], True]}, {"labels": [[[0.5], [1.0]], True]}, {"a": [WHOLE, False]},
    {"labels": [[1, 0], False], "a": [[[1.5, 2.5], [3.5, 4.5]], True]}, {"a": [[1, 2], False]}, {"labels": [[1, 0],
        False], "a": [[[1], [2]], False]},
]  # fmt: skip
TAKEN = {
    "DataCollatorForMultipleChoice": KnownFailure(
        "it takes the labels out of the rows",
        finding="Transformers: small functions of later releases",
        releases=before("transformers", "5.23"),
    )
}
OF = "transformers:DataCollator"
# Sources: the documentation of each collator.
COLLATOR_ROWS: Sequence[Row] = (
    *(
        Row("batches", f"{OF}ForTokenClassification", f"labels of type {form}, {returns}", partial(_classes, returns,
            form), CLASSES, since="4.57" if returns == "pt" else "5.16")
        for form, returns in (("list", "pt"), ("tensor", "pt"), ("list", "np"), ("array", "np"))
    ),
    *(
        Row("batches", f"{OF}ForSeq2Seq", f"labels of type {form}, {returns}", partial(_sequences, returns, form),
            SEQUENCES, since="4.57")
        for form, returns in (("list", "pt"), ("array", "pt"), ("list", "np"))
    ),
    Row(
        "batches", f"{OF}ForSeq2Seq", "inputs of a decoder", _decoded,
        [
            [[99, 1, 2], [3, 4, 99], [99, 5, 6]], [RIGHT], ["attention_mask", "input_ids", "labels"],
            ["attention_mask", "input_ids", "labels"],
        ],
        since="4.57",
    ),
    Row("batches", f"{OF}ForSeq2Seq", "rows that are not padded", _unpadded, [[[1, 2], [3, 4]]] * 3, since="4.57"),
    *(
        Row("batches", f"transformers:{name}", "rows that stay as they are", partial(_untouched, options, rows), [],
            since="4.57", known=TAKEN.get(name))
        for name, options, rows in UNTOUCHED
    ),
    Row("batches", f"{OF}ForMultipleChoice", "choices on the left", _chosen, CHOSEN, since="4.57"),
    *(
        Row("batches", f"{OF}ForLanguageModeling", f"ids in every form, {returns}", partial(_modelled, returns),
            MODELLED, since="4.57")
        for returns in ("pt", "np")
    ),
    Row("batches", f"{OF}ForLanguageModeling", "ids that are all masked, and none", _masked, MASKED, since="4.57"),
    *(Row("combinations", f"{OF}ForLanguageModeling", name, partial(_unfit, options), Refused(words),
        since="4.57") for name, options, words in UNFIT),
    Row("batches", f"{OF}WithFlattening", "an empty row, and a separator of a call", _flat, FLAT, since="5.24"),
    *(
        Row("batches", "transformers:default_data_collator", f"columns of every kind, {returns}", partial(_default,
            returns), DEFAULT, since="5.22")
        for returns in ("pt", "np")
    ),
)  # fmt: skip
