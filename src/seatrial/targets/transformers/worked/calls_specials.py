"""Calls of special tokens, tries and encodings of Transformers' tokenizers, on record; see `recorded_calls`."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.transformers.worked.calls_tokens import (
    PATTERNS,
    TOKENIZER,
    fields,
    letters,
    made_letters,
)
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of


def _specials(base: Any) -> list[Any]:
    """Return special tokens that are set, added, replaced, and saved and read."""
    from tokenizers import AddedToken

    found: list[Any] = []

    def state(one: Any) -> list[Any]:
        return [
            {name: str(value) for name, value in sorted(one.special_tokens_map.items())},
            one.all_special_tokens,
            one.all_special_ids,
            len(one),
            one.added_tokens_decoder
            and {at: str(value) for at, value in sorted(one.added_tokens_decoder.items())},
            [
                one.bos_token_id,
                one.pad_token_id,
                one.pad_token_type_id,
                one.mask_token,
                one.model_max_length,
                one.padding_side,
                one.truncation_side,
            ],
        ]

    tokenizer = made_letters(base, padding_side="left", truncation_side="left", model_max_length=77)
    older = "additional_special_tokens" in tokenizer.SPECIAL_TOKENS_ATTRIBUTES
    extra = "additional_special_tokens" if older else "extra_special_tokens"
    found.append(state(tokenizer))
    for call in (
        lambda: tokenizer.add_special_tokens(
            {"bos_token": "<new>", "pad_token": AddedToken("<pad2>", lstrip=True)}
        ),
        lambda: tokenizer.add_special_tokens({extra: ["<e1>", "<e2>"]}),
        lambda: tokenizer.add_special_tokens({extra: ["<e3>"]}, replace_extra_special_tokens=False),
        lambda: tokenizer.add_special_tokens({extra: ["<e4>"]}),
        lambda: tokenizer.add_special_tokens({"other": "<o>"}),
        lambda: tokenizer.add_special_tokens({"bos_token": 3}),
        lambda: tokenizer.add_special_tokens({}),
        lambda: setattr(tokenizer, "eos_token", "a"),
        lambda: setattr(tokenizer, "eos_token_id", 8),
        lambda: setattr(tokenizer, "mask_token", None),
        lambda: setattr(tokenizer, "sep_token", 5),
        lambda: setattr(tokenizer, extra, ["<e5>"]),
        lambda: tokenizer.eos_token_id,
        lambda: tokenizer.image_token,
        lambda: tokenizer.num_special_tokens_to_add(pair=True),
        lambda: [tokenizer.max_len_single_sentence, tokenizer.max_len_sentences_pair],
        lambda: tokenizer.sanitize_special_tokens(),
    ):
        found.append([refusal(call), state(tokenizer)])
    for options in ({}, {"legacy_format": False}, {"filename_prefix": "own"}):
        path = new_folder()
        names = refusal(lambda path=path, options=options: tokenizer.save_pretrained(path, **options))
        names = names if isinstance(names, str) else sorted(Path(one).name for one in names)
        found.append([names, sorted(one.name for one in Path(path).iterdir())])
        if not options:
            for more in ({}, {"bos_token": "<again>"}, {"padding_side": "right"}, {extra: ["<e9>"]}):
                found.append(state(letters(base).from_pretrained(path, **more)))
    return found


def _prepared(tokenizer: Any, first: Any, second: Any) -> Any:
    return fields(tokenizer.prepare_for_model(first, second, return_special_tokens_mask=True))


def _masks(base: Any) -> list[Any]:
    """Return masks of special tokens, kinds of tokens and whole rows by pattern."""
    found: list[Any] = []
    for pattern, whole in product(PATTERNS, (True, False)):
        tokenizer = made_letters(
            base, special_tokens_pattern=pattern, token_type_ids_include_special_tokens=whole
        )
        tokenizer.prefix_tokens, tokenizer.suffix_tokens = [1, 3], [2]
        for first, second in (([7, 8], None), ([7, 8], [9]), ([], None)):
            found.append(
                [
                    refusal(partial(tokenizer.build_inputs_with_special_tokens, first, second)),
                    refusal(partial(tokenizer.get_special_tokens_mask, first, second)),
                    refusal(partial(tokenizer.create_token_type_ids_from_sequences, first, second)),
                    refusal(partial(_prepared, tokenizer, first, second)),
                ]
            )
        found.append(
            refusal(partial(tokenizer.get_special_tokens_mask, [1, 7, 2], already_has_special_tokens=True))
        )
    return found


def _tries(made: Any) -> list[Any]:
    """Return where tries cut texts, and what continues beginnings."""
    found: list[Any] = []
    for words in (
        ["[CLS]", "extra_id_1", "extra_id_100"],
        ["ab", "abc", "b", "bcd"],
        ["a", "aa", "aaa"],
        ["", "x"],
        ["TTO", "O"],
    ):
        trie = made()
        for word in words:
            trie.add(word)
        found.append(
            [
                trie.split(text)
                for text in ("[CLS] extra_id_100 x extra_id_1", "abcd ab bcd aaab", "aaaaa", "", "OTTO x")
            ]
        )
        found.append(trie.cut_text("abcdef", [0, 2, 2, 5]))
        if hasattr(trie, "extensions"):
            found.append([sorted(trie.extensions(text)) for text in ("a", "extra", "zz", "")])
    return found


def _typed(value: Any) -> list[Any]:
    plain_value = value.tolist() if hasattr(value, "tolist") else value
    return [type(value).__name__, str(getattr(value, "dtype", "")), plain_value]


def _tensors(made: Any) -> list[Any]:
    """Return encodings that become tensors of several kinds, with an axis in front or not."""
    found: list[Any] = []
    data: Sequence[Mapping[str, Any]] = (
        {"input_ids": [1, 2]},
        {"input_ids": [[1, 2], [3, 4]]},
        {"input_ids": [[1, 2], [3]]},
        {"input_ids": []},
        {"input_ids": [[], []]},
        {"input_ids": [np.array([1, 2]), np.array([3, 4])]},
        {"input_ids": [0.5]},
        {"input_ids": np.array([[1]])},
        {"overflowing_tokens": [[1, 2], [3]]},
        {"input_ids": ["a"]},
        {"input_ids": [[1]], "other": [[0.5]]},
    )
    for one, kind, axis in product(data, ("pt", "np", None, "other"), (False, True)):

        def call(one: Any = one, kind: Any = kind, axis: Any = axis) -> Any:
            encoded = made(copy.deepcopy(one), tensor_type=kind, prepend_batch_axis=axis)
            return {name: _typed(value) for name, value in encoded.items()}

        found.append(refusal(call))
    encoded = made({"input_ids": [[1, 2], [3, 4]], "name": "x"}, n_sequences=2)
    calls = (
        lambda: encoded[0],
        lambda: encoded[0:1],
        lambda: encoded["input_ids"],
        lambda: encoded.input_ids,
        lambda: encoded.nothing,
        lambda: list(encoded),
        lambda: encoded.n_sequences,
        lambda: encoded.is_fast,
        lambda: encoded.tokens(),
        lambda: encoded.word_ids(),
        lambda: encoded.char_to_token(0),
        lambda: encoded.token_to_word(0),
        lambda: encoded.sequence_ids(),
        lambda: len(encoded),
        lambda: encoded.convert_to_tensors("pt").data["input_ids"],
        lambda: encoded.to("cpu")["input_ids"].device.type,
        lambda: encoded.to(7.5),
    )
    return [*found, *map(refusal, calls)]


def _kinds(function: Any) -> list[Any]:
    """Return which signs are blanks, control signs and punctuation, and ends and starts of words."""
    module = importlib.import_module(function.__module__)
    signs = [
        chr(one)
        for one in (*range(0x180), 0x2000, 0x200B, 0x2028, 0x3000, 0x3001, 0x4E00, 0xE000, 0xFFFD, 0xAD)
    ]
    return [
        [
            "".join(f"{ord(one):x} " for one in signs if getattr(module, name)(one))
            for name in ("_is_whitespace", "_is_control", "_is_punctuation")
        ],
        *(
            [getattr(module, name)(one) for one in ("ab", "a ", " a", "a.", ".a", "\u00ada")]
            for name in ("_is_end_of_word", "_is_start_of_word")
        ),
    ]


def _places(base: Any) -> list[Any]:
    """Return places of signs, words and tokens in an encoding of the package tokenizers, from both ends."""
    made = tiny_tokenizer()
    encoded = made([["ab cd", "ef"], ["ghi", "j k"]], padding=True, return_offsets_mapping=True)
    found: list[Any] = [
        [encoded.tokens(row), encoded.word_ids(row), encoded.sequence_ids(row)] for row in (0, 1)
    ]
    names = ("token_to_word", "token_to_sequence", "word_to_tokens", "token_to_chars", "word_to_chars", "char_to_token",
             "char_to_word")  # fmt: skip
    for name, place in product(
        names, ((0,), (-1,), (0, 1), (1, -2), (-1, 2), (-2, -1), (1, 0, 1), (0, 1, 1), (-1, 0, 1))
    ):
        found.append([name, *place, str(refusal(partial(getattr(encoded, name), *place)))])
    return found


BASE = "transformers.tokenization_utils_base"
PYTHON = "transformers.tokenization_python:{0} transformers.tokenization_utils:{0}"
CALLS: Sequence[Call] = (
    Call("batches", TOKENIZER, "special tokens that are set, saved and read", _specials),
    Call("batches", TOKENIZER, "rows and masks by pattern", _masks),
    Call("batches", PYTHON.format("Trie"), "cuts of texts", _tries),
    Call("batches", PYTHON.format("ExtensionsTrie"), "cuts and continuations", _tries),
    Call("batches", f"{BASE}:BatchEncoding", "tensors and errors", _tensors),
    Call("batches", "transformers:PreTrainedTokenizerFast", "places from both ends", _places),
    Call("batches", PYTHON.format("_is_control"), "kinds of signs", _kinds),
)
SPECIAL_CALL_ROWS = rows_of(CALLS)
