"""Calls of Transformers' tokenizers in Python whose results are on record; see `recorded_calls`."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seatrial.targets.transformers.worked.recorded_calls import Call, plain, refusal, rows_of

SPECIALS: Mapping[str, str] = {
    "unk_token": "<u>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "<c>",
    "sep_token": "<x>",
    "pad_token": "<p>",
    "mask_token": "<m>",
}
TOKENS = [*SPECIALS.values(), *"abcdefghijklmnop .,!?'AB"]


def letters(base: Any) -> Any:
    """Return a tokenizer in Python whose tokens are letters; it may lower them, and leaves out control signs."""

    class Letters(base):  # type: ignore[misc]
        model_input_names: Sequence[str] = ["input_ids", "token_type_ids", "attention_mask"]

        def __init__(
            self, vocab_file: str | None = None, do_lower_case: bool = False, **options: Any
        ) -> None:
            self.do_lower_case = do_lower_case
            self.names = json.loads(Path(vocab_file).read_text()) if vocab_file else list(TOKENS)
            super().__init__(do_lower_case=do_lower_case, **options)

        vocab_files_names: Mapping[str, str] = {"vocab_file": "letters.json"}

        @property
        def vocab_size(self) -> int:
            return len(self.names)

        def get_vocab(self) -> dict[str, int]:
            known: dict[str, int] = {name: at for at, name in enumerate(self.names)}
            return {**known, **self.added_tokens_encoder}

        def _tokenize(self, text: str, **options: Any) -> list[str]:
            return list(text)

        def _convert_token_to_id(self, token: str) -> int:
            known = token in self.names
            return int(self.names.index(token if known else "<u>"))

        def _convert_id_to_token(self, index: int) -> str:
            return str(self.names[index]) if 0 <= index < len(self.names) else "<u>"

        def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
            return "".join(tokens)

        def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str]:
            path = Path(save_directory) / f"{filename_prefix + '-' if filename_prefix else ''}letters.json"
            path.write_text(json.dumps(self.names))
            return (str(path),)

    return Letters


def made_letters(base: Any, **options: Any) -> Any:
    return letters(base)(**{**SPECIALS, **options})


def fields(found: Any) -> Any:
    """Return fields of an encoding, or what else was given."""
    return {name: found[name] for name in found} if hasattr(found, "keys") else found


PATTERNS = ("none", "cls_sep", "eos", "bos", "bos_eos", "cls_double_sep", "prefix_suffix", "other")
GIVEN: Sequence[tuple[Any, Any]] = (
    ("abc", None),
    ("abc", "de"),
    (["abc", "d"], None),
    (["abc", "d"], ["ef", "ghi"]),
    ([("abc", "de"), ("f", "g")], None),
    ([5, 9], [11]),
    (["a", "bc"], 3),
    ("", None),
    ("", "ab"),
    ([], None),
    (["abc", "d"], ["ef"]),
    ([["abc"], ["d"]], None),
)
FORMS: Sequence[Mapping[str, Any]] = (
    {},
    {"add_special_tokens": False},
    {"return_token_type_ids": True},
    {"return_attention_mask": False},
    {"return_special_tokens_mask": True},
    {"return_length": True},
    {"padding": True},
    {"padding": "max_length", "max_length": 9},
    {"padding": True, "pad_to_multiple_of": 4},
    {"padding": True, "padding_side": "left"},
    {"truncation": True, "max_length": 4},
    {"truncation": "only_first", "max_length": 5},
    {"truncation": "only_second", "max_length": 6},
    {"truncation": "longest_first", "max_length": 5, "stride": 1},
    {"truncation": "only_first", "max_length": 5, "stride": 1, "return_overflowing_tokens": True},
    {"truncation": "only_second", "max_length": 6, "stride": 1, "return_overflowing_tokens": True},
    {"truncation": True, "max_length": 6, "return_overflowing_tokens": True},
    {"is_split_into_words": True},
    {"return_tensors": "np", "padding": True},
    {"return_tensors": "pt", "padding": True},
    {"truncation": True, "max_length": 5, "return_overflowing_tokens": True, "return_tensors": "pt"},
    {"return_offsets_mapping": True},
    {"max_length": 3},
    {"padding": "max_length"},
    {"padding": "other"},
    {"truncation": True},
    {"truncation": "other"},
)


def _encoded(pattern: str, base: Any) -> list[Any]:
    """Return the fields of texts of every form by options."""
    found: list[Any] = []
    tokenizer = made_letters(base, special_tokens_pattern=pattern, model_max_length=12)
    tokenizer.prefix_tokens, tokenizer.suffix_tokens = [1, 3], [2]
    for (text, pair), options in product(GIVEN, FORMS if pattern in ("none", "cls_sep") else FORMS[:17:2]):
        found.append(
            refusal(lambda text=text, pair=pair, options=options: fields(tokenizer(text, pair, **options)))
        )
    return _short(found)


def _short(found: Sequence[Any]) -> list[Any]:
    """Return each result as a number of its values and their places, to keep the record small."""
    return [one if isinstance(one, str) else _summed(one) for one in found]


def _summed(value: Any) -> int:
    total = 0
    for sign in json.dumps(plain(value), sort_keys=True):
        total = (total * 31 + ord(sign)) % 1_000_003
    return total


def _pieces(base: Any) -> list[Any]:
    """Return tokens of texts with added tokens that take blanks, are words, are special or are lowered."""
    from tokenizers import AddedToken

    module = importlib.import_module(base.__module__)
    made: Any = getattr(module, "AddedToken", AddedToken)
    found: list[Any] = []
    texts = (
        "ab <L> cd",
        "ab <R> cd",
        "ab<W>cd ab <W> cd",
        "<N>ab<N>",
        "ABab<Up>",
        "a<m> b </s>c",
        "x<new>y",
        "<L><R>",
        "ab<W>, <W>",
    )
    for lower, split in product((False, True), (False, True)):
        tokenizer = made_letters(base, do_lower_case=lower, split_special_tokens=split)
        numbers = [
            tokenizer.add_tokens(
                [made("<L>", lstrip=True), made("<R>", rstrip=True), made("<W>", single_word=True)]
            ),
            tokenizer.add_tokens(["<N>", made("<Up>", normalized=True), "a", "<N>", ""]),
            tokenizer.add_tokens([made("<new>", lstrip=True, rstrip=True)], special_tokens=True),
            tokenizer.add_tokens([]),
        ]
        found.append(
            [
                numbers,
                len(tokenizer),
                tokenizer.vocab_size,
                tokenizer.get_added_vocab(),
                tokenizer.all_special_tokens,
            ]
        )
        for text in texts:
            found.append(
                [
                    tokenizer.tokenize(text),
                    tokenizer.encode(text),
                    tokenizer.tokenize(text, split_special_tokens=not split),
                ]
            )
    return found


def _texts(base: Any) -> list[Any]:
    """Return texts of ids by options."""
    tokenizer = made_letters(base)
    tokenizer.add_tokens(["<new>"])
    tokenizer.add_tokens(["<own>"], special_tokens=True)
    size = len(tokenizer)
    rows = [
        [1, 7, 8, size - 2, 9, 2],
        [3, 7, 21, 22, 8, 21, 23, size - 1, 5, 5],
        [21, 22, 21, 24, 21, 25, 7, 21, 26, 7],
        [],
    ]
    found: list[Any] = []
    for skip, clean, spaces in product((False, True), (None, False, True), (False, True)):
        more = {
            "skip_special_tokens": skip,
            "clean_up_tokenization_spaces": clean,
            "spaces_between_special_tokens": spaces,
        }
        found.append([refusal(partial(tokenizer.decode, row, **more)) for row in rows])
        found.append(refusal(partial(tokenizer.batch_decode, rows, **more)))
    given = (
        7,
        [7],
        torch.tensor([7, 8]),
        np.array([7, 8]),
        torch.tensor([[7, 8], [5, 1]]),
        [[7], [8]],
        torch.tensor(7),
        "x",
        [99],
    )
    found += [refusal(partial(tokenizer.decode, one)) for one in given]
    found += [refusal(partial(tokenizer.batch_decode, one)) for one in given]
    found += [
        refusal(partial(tokenizer.convert_ids_to_tokens, one, skip_special_tokens=True))
        for one in (7, [1, 7, 5, size - 1], [])
    ]
    found += [
        refusal(partial(tokenizer.convert_tokens_to_ids, one))
        for one in ("a", ["a", "<new>", "none"], [], None, "none")
    ]
    cleaned = [
        tokenizer.clean_up_tokenization(one)
        for one in ("a . b ? c ! d , e", "do n't I 'm it 's they 've 're ' x")
    ]
    return [*found, cleaned]


def _cut(base: Any) -> list[Any]:
    """Return ids that are left and cut, by strategy, stride and side."""
    found: list[Any] = []
    for side in ("right", "left"):
        tokenizer = made_letters(base, truncation_side=side)
        for strategy, stride, number in product(
            ("longest_first", "only_first", "only_second", "do_not_truncate"), (0, 2), (0, 1, 3, 4, 9)
        ):
            for first, second in (
                ([1, 2, 3, 4, 5, 6], None),
                ([1, 2, 3, 4, 5, 6], [11, 12, 13]),
                ([1, 2], [11, 12, 13, 14, 15]),
            ):
                found.append(
                    refusal(
                        partial(
                            tokenizer.truncate_sequences,
                            list(first),
                            second and list(second),
                            number,
                            strategy,
                            stride,
                        )
                    )
                )
    return found


def _pad(tokenizer: Any, given: Any, options: Mapping[str, Any]) -> Any:
    found = tokenizer.pad(copy.deepcopy(given), **options)
    return {
        name: [value.tolist() if hasattr(value, "tolist") else value for value in found[name]]
        for name in found
    }


def _padded(base: Any) -> list[Any]:
    """Return batches that are padded, from several forms, by side, length and tensors."""
    found: list[Any] = []
    rows = [[7, 8, 9], [10], [11, 12]]
    mask = [[1, 0, 1], [1], [1, 1]]
    given: Sequence[Any] = (
        {"input_ids": rows},
        {"input_ids": rows, "attention_mask": mask, "token_type_ids": mask},
        [{"input_ids": row, "special_tokens_mask": [0] * len(row)} for row in rows],
        {"input_ids": rows[0]},
        {"input_ids": [torch.tensor(row) for row in rows]},
        {"input_ids": [np.array(row) for row in rows]},
        {"input_ids": []},
        {"other": rows},
        {"input_ids": torch.tensor([[1, 2], [3, 4]])},
        {"input_ids": ["a", "b"]},
    )
    options: Sequence[Mapping[str, Any]] = (
        {},
        {"padding": "max_length", "max_length": 5},
        {"pad_to_multiple_of": 4},
        {"padding": False},
        {"return_attention_mask": False},
        {"padding_side": "left"},
        {"return_tensors": "pt"},
        {"return_tensors": "np", "padding_side": "left"},
        {"padding": "max_length", "max_length": 5, "pad_to_multiple_of": 4},
        {"padding": "max_length", "max_length": 2},
    )
    for side in ("right", "left"):
        tokenizer = made_letters(base, padding_side=side, pad_token_type_id=4)
        for one, more in product(given, options):
            found.append(refusal(partial(_pad, tokenizer, one, more)))
    none = letters(base)(unk_token="<u>")
    found.append(refusal(partial(none.pad, {"input_ids": rows})))
    return _short(found)


TOKENIZER = "transformers:PreTrainedTokenizer"
CALLS: Sequence[Call] = (
    *(
        Call("batches", TOKENIZER, f"texts of every form, {pattern}", partial(_encoded, pattern))
        for pattern in PATTERNS
    ),
    Call("batches", TOKENIZER, "added tokens in texts", _pieces),
    Call("batches", TOKENIZER, "texts of ids", _texts),
    Call("batches", TOKENIZER, "ids that are cut", _cut),
    Call("batches", TOKENIZER, "batches that are padded", _padded),
)
TOKEN_CALL_ROWS = rows_of(CALLS)
