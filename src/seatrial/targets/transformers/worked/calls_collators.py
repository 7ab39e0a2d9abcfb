"""Calls of Transformers' collators whose results are on record, with draws that follow from places alone."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of


def _levels(number: int) -> Any:
    """Return numbers between 0 and 1 that follow from places alone."""
    return (np.arange(number) * 0.618034 + 0.37) % 1.0


class Drawer:
    """Replaces numpy's generator: draws follow from places and the seed alone."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def binomial(self, number: int, chance: Any, size: Any = None) -> Any:
        shape = np.shape(chance) if size is None else size
        levels = (_levels(int(np.prod(shape))) + 0.1 * self.seed) % 1.0
        return (levels.reshape(shape) < chance).astype(np.int64)

    def integers(self, low: int = 0, high: int = 2, size: Any = None, **more: Any) -> Any:
        return (np.arange(int(np.prod(size))) * 7 + self.seed + low) % (high - low) + low

    randint = integers


def _bernoulli(chance: Tensor, generator: Any = None) -> Tensor:
    seed = 0 if generator is None else generator.initial_seed() % 10
    levels = (_levels(chance.numel()) + 0.1 * seed) % 1.0
    return torch.from_numpy(levels).reshape(chance.shape).lt(chance).to(chance.dtype)


def _randint(*given: Any, **more: Any) -> Tensor:
    """Return whole numbers that follow from places alone; takes what torch takes."""
    parts = list(given)
    size = more.get("size", parts.pop() if parts and not isinstance(parts[-1], int) else (1,))
    high = int(more.get("high", parts[-1] if parts else 2))
    low = int(more.get("low", parts[0] if len(parts) > 1 else 0))
    number = int(np.prod(tuple(size)))
    return (torch.arange(number) * 7 % (high - low) + low).reshape(tuple(size))


def _permuted(size: int, generator: Any = None) -> Tensor:
    return torch.arange(size).flip(0)


def _reverse(values: Any) -> None:
    values[:] = values[::-1].copy()


@contextlib.contextmanager
def _drawn() -> Iterator[None]:
    own = Drawer()
    with (
        patch("torch.bernoulli", _bernoulli),
        patch("torch.randint", _randint),
        patch("torch.randperm", _permuted),
        patch("numpy.random.binomial", own.binomial),
        patch("numpy.random.randint", own.randint),
        patch("numpy.random.default_rng", Drawer),
        patch("numpy.random.shuffle", _reverse),
        patch(
            "numpy.random.permutation",
            lambda one: np.asarray(one)[::-1] if np.ndim(one) else np.arange(one)[::-1],
        ),
    ):
        yield


def tokenizer(side: str = "right", **tokens: Any) -> Any:
    """Return a tokenizer of bytes with the tokens that collators of masks need."""
    made = tiny_tokenizer()
    made.padding_side = side
    made.add_special_tokens({"mask_token": "<m>", "cls_token": "<c>", "sep_token": "<x>"})
    for name, value in tokens.items():
        setattr(made, name, value)
    return made


def _ids(*lengths: int) -> list[list[int]]:
    return [[40 + (row * 5 + at * 3) % 30 for at in range(length)] for row, length in enumerate(lengths)]


def _words(length: int) -> dict[str, Any]:
    """Return masks of special tokens and places in a text, where a word has one token, two or three."""
    spans, place = [], 0
    for at in range(length):
        if at in (0, length - 1):
            spans.append((0, 0))
            continue
        place += 1 if at % 3 == 1 else 0
        spans.append((place, place + 2))
        place += 2
    return {
        "special_tokens_mask": [int(at in (0, length - 1)) for at in range(length)],
        "offset_mapping": spans,
    }


def _batch(collator: Any, rows: Any, kind: str) -> dict[str, Any]:
    with _drawn():
        found = collator(copy.deepcopy(rows), return_tensors=kind)
    return {
        name: [str(value.dtype), value.tolist()] if hasattr(value, "dtype") else value
        for name, value in sorted(found.items())
    }


def _collated(rows: Any, calls: Sequence[Mapping[str, Any]], made: Any) -> list[Any]:
    """Return batches by options, two of each collator, on the right and on the left, as tensors and arrays."""
    found: list[Any] = []
    # In numpy the order of spans is drawn from a stream that cannot be replaced.
    kinds = ("pt",) if "Permutation" in made.__name__ else ("pt", "np")
    for options, side, kind in product(calls, ("right", "left"), kinds):

        def call(options: Any = options, side: Any = side, kind: Any = kind) -> Any:
            given = {name: value for name, value in options.items() if name != "tokens"}
            own = tokenizer(side, **options.get("tokens", {}))
            collator = made(own, **given) if made.__name__ != "DataCollatorWithFlattening" else made(**given)
            return [refusal(partial(_batch, collator, one, kind)) for one in rows for _ in range(2)]

        found.append(refusal(call))
    return _short(found)


def _short(found: Sequence[Any]) -> list[Any]:
    """Return each result as a number of its values and their places, to keep the record small."""
    numbers = []
    for one in found:
        total = 0
        for sign in one if isinstance(one, str) else str(one):
            total = (total * 31 + ord(sign)) % 1_000_003
        numbers.append(one if isinstance(one, str) else total)
    return numbers


PLAIN = [{"input_ids": row} for row in _ids(5, 3, 4)]
SPECIAL = [
    {
        "input_ids": row,
        **{name: value for name, value in _words(len(row)).items() if name != "offset_mapping"},
    }
    for row in _ids(8, 6)
]
WORDS = [{"input_ids": row, **_words(len(row))} for row in _ids(10, 10)]
LABELLED = [{"input_ids": row, "labels": row[: at + 2]} for at, row in enumerate(_ids(5, 3, 4))]
MASKED: Sequence[Mapping[str, Any]] = (
    {"mlm": False},
    {},
    {"mlm_probability": 0.6},
    {"mlm_probability": 0.6, "mask_replace_prob": 0.5, "random_replace_prob": 0.3},
    {"mlm_probability": 0.6, "mask_replace_prob": 1.0, "random_replace_prob": 0.0},
    {"mlm_probability": 0.6, "mask_replace_prob": 0.0, "random_replace_prob": 1.0},
    {"mlm_probability": 0.6, "seed": 3},
    {"pad_to_multiple_of": 8},
    {"mlm_probability": 0.6, "mask_replace_prob": 0.8, "random_replace_prob": 0.0, "seed": 4},
    {"mlm_probability": 1.5},
    {"mlm_probability": None},
    {"mask_replace_prob": 0.9, "random_replace_prob": 0.3},
    {"tokens": {"mask_token": None}},
    {"mlm": False, "pad_to_multiple_of": 4},
    {"mlm": False, "tokens": {"pad_token": None}},
    {"mlm_probability": 0.0},
    {"mlm": False, "mlm_probability": None},
)
WHOLE: Sequence[Mapping[str, Any]] = (
    *(
        {"whole_word_mask": True, "mask_replace_prob": replace, "random_replace_prob": 0.0, **more}
        for replace in (1, 0.8)
        for more in ({"mlm_probability": 0.3}, {"mlm_probability": 0.6}, {"mlm_probability": 0.3, "seed": 2})
    ),
    {"whole_word_mask": True, "mlm": False},
)
TRANSLATED: Sequence[Mapping[str, Any]] = (
    {},
    {"pad_to_multiple_of": 4},
    {"label_pad_token_id": -7},
    {"padding": "max_length", "max_length": 9},
    {"padding": False},
    {"padding": "longest"},
    {"pad_to_multiple_of": 4, "label_pad_token_id": -7},
)
FLAT: Sequence[Mapping[str, Any]] = (
    {},
    {"return_position_ids": False},
    {"separator_id": -7},
    {"return_flash_attn_kwargs": True},
    {"return_seq_idx": True},
    {"return_flash_attn_kwargs": True, "return_seq_idx": True, "return_position_ids": False},
)
EMPTY = [
    {"input_ids": [], "labels": []},
    {"input_ids": [1, 2], "labels": [3, 4]},
    {"input_ids": [5], "labels": [6]},
]
PAIRS = [{"input_ids": row, "labels": row[::-1], "attention_mask": [1] * len(row)} for row in _ids(4, 2, 6)]
CHOICES = [{"input_ids": _ids(3, 5), "label": 1}, {"input_ids": _ids(4, 2), "label": 0}]
TABLE: Mapping[str, Sequence[tuple[str, Any, Sequence[Mapping[str, Any]]]]] = {
    "DataCollatorForLanguageModeling": (
        (
            "rows of ids",
            [PLAIN, _ids(5, 5), [{"input_ids": row, "labels": row} for row in _ids(4, 2)]],
            MASKED,
        ),
        ("masks of special tokens", [SPECIAL], MASKED),
        ("whole words", [WORDS], WHOLE),
    ),
    "DataCollatorForSeq2Seq": (
        (
            "labels of lengths",
            [
                LABELLED,
                PLAIN,
                [{**row, "label": row["labels"]} for row in LABELLED],
                [
                    {"input_ids": np.array(row["input_ids"]), "labels": np.array(row["labels"])}
                    for row in LABELLED
                ],
            ],
            TRANSLATED,
        ),
    ),
    "DataCollatorForTokenClassification": (
        (
            "labels of tokens",
            [[{"input_ids": row, name: [1] * len(row)} for row in _ids(5, 3)] for name in ("labels", "label")]
            + [
                PLAIN,
                [{"input_ids": row, "labels": torch.ones(len(row), dtype=torch.long)} for row in _ids(5, 3)],
            ],
            TRANSLATED,
        ),
    ),
    "DataCollatorForPermutationLanguageModeling": (
        (
            "spans",
            [_ids(8, 8), [{"input_ids": row} for row in _ids(8, 6)], _ids(7, 7)],
            ({}, {"plm_probability": 0.4, "max_span_length": 3}, {"tokens": {"mask_token": None}}),
        ),
    ),
    "DataCollatorWithPadding": (
        (
            "labels by name",
            [
                [{"input_ids": row, name: at} for at, row in enumerate(_ids(3, 5))]
                for name in ("label", "labels", "label_ids")
            ]
            + [PLAIN],
            ({}, {"pad_to_multiple_of": 4}, {"padding": "max_length", "max_length": 7}, {"padding": False}),
        ),
    ),
    "DataCollatorWithFlattening": (("rows end to end", [PAIRS, PLAIN, EMPTY, EMPTY[:1]], FLAT),),
    "DataCollatorForMultipleChoice": (
        (
            "choices",
            [
                CHOICES,
                [{"input_ids": one["input_ids"]} for one in CHOICES],
                [{"input_ids": one["input_ids"], "labels": one["label"]} for one in CHOICES],
            ],
            ({}, {"pad_to_multiple_of": 4}),
        ),
    ),
}
FEATURES: Sequence[Any] = (
    [{"label": 1, "x": [1, 2]}, {"label": 0, "x": [3, 4]}],
    [{"label": 0.5, "x": [0.1]}, {"label": 1.5, "x": [0.2]}],
    [{"label_ids": [1, 2], "x": 3}, {"label_ids": [0, 5], "x": 4}],
    [{"label_ids": torch.tensor([1, 2])}, {"label_ids": torch.tensor([3, 4])}],
    [{"label_ids": np.array([1, 2])}, {"label_ids": np.array([3, 4])}],
    [{"label_ids": [0.5]}, {"label_ids": [1.5]}],
    [{"label": torch.tensor(1), "x": torch.ones(2)}, {"label": torch.tensor(2), "x": torch.zeros(2)}],
    [{"label": None, "x": 1}, {"label": None, "x": 2}],
    [{"x": "text", "y": None, "z": np.ones(2)}, {"x": "other", "y": None, "z": np.zeros(2)}],
    [{"label": True}, {"label": False}],
    [{"labels": [1]}, {"labels": [2]}],
)


def _default(function: Any) -> list[Any]:
    """Return batches of rows of several kinds, as tensors and arrays."""
    found: list[Any] = []
    for rows, kind in product(FEATURES, ("pt", "np", "other")):

        def call(rows: Any = rows, kind: Any = kind) -> Any:
            out = function(copy.deepcopy(rows), return_tensors=kind)
            return {name: [str(value.dtype), value] for name, value in sorted(out.items())}

        found.append(refusal(call))
    return found


CALLS: Sequence[Call] = (
    *(
        Call("batches", f"transformers:{name}", f"batches by place, {what}", partial(_collated, rows, calls))
        for name, cases in TABLE.items()
        for what, rows, calls in cases
    ),
    Call("batches", "transformers:default_data_collator", "rows of kinds", _default),
)
COLLATOR_CALL_ROWS = rows_of(CALLS)
