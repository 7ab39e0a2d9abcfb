"""Worked examples of Transformers' tokenizers: places in encodings, options of calls, padding, and ids to texts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.worked_rows import Row

PARTS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d", "##b", "##c", "e", ".", "ab")
"""The vocabulary: `a` is 5, `##b` is 9."""
PLACE = "transformers:PreTrainedTokenizerFast"


def pieces(made: Any, **options: Any) -> Any:
    """Return a tokenizer of word pieces that frames texts and pairs as BERT does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    core = Tokenizer(models.WordPiece(vocab={part: at for at, part in enumerate(PARTS)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(prefix="##")
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    given = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"], **named, **options}
    return made(tokenizer_object=core, **given)


Asked = Callable[[Any], Any]
"""Takes a tokenizer of pieces."""


def _row(name: str, asked: Asked, right: Any, *, since: str = "4.57", **options: Any) -> Row:
    return Row("texts", PLACE, name, lambda made: asked(pieces(made, **options)), right, since=since)


def _pair(tokenizer: Any) -> Any:
    """Return the encoding of `ab.c` is [CLS] ab . c [SEP], and of `adb d`: [UNK] d [SEP]."""
    return tokenizer("cb e", "abc cc", return_offsets_mapping=True)


def _two(tokenizer: Any) -> Any:
    return tokenizer(["a cb", "cb e"], ["d", "abc cc"], padding=True)


def _lists(found: Any) -> Any:
    """Return the values of an encoding, tensors and arrays with their types."""
    return {
        name: [type(value).__name__, str(value.dtype).removeprefix("torch."), value.tolist()]
        if hasattr(value, "tolist")
        else value
        for name, value in found.items()
    }


def _raised(call: Callable[[], Any]) -> str:
    """Return the name of the error of a call, or what it gives."""
    try:
        return f"no error: {call()}"
    except (ValueError, TypeError, KeyError) as error:
        return type(error).__name__


# "cb e" is [CLS] c ##b e [SEP]: 2 7 9 11 3; "abc cc" is ab ##c c ##c: 13 10 7 10.
CB_E, ABC_CC = [7, 9, 11], [13, 10, 7, 10]
PLACES: Sequence[Row] = (
    _row("tokens of a pair", lambda t: _pair(t).tokens(),
         ["[CLS]", "c", "##b", "e", "[SEP]", "ab", "##c", "c", "##c", "[SEP]"]),
    _row("texts of a pair that tokens are of", lambda t: _pair(t).sequence_ids(),
         [None, 0, 0, 0, None, 1, 1, 1, 1, None]),
    _row("words of a pair that tokens are of", lambda t: _pair(t).word_ids(),
         [None, 0, 0, 1, None, 0, 0, 1, 1, None]),
    _row("offsets of a pair", lambda t: _pair(t)["offset_mapping"],
         [(0, 0), (0, 1), (1, 2), (3, 4), (0, 0), (0, 2), (2, 3), (4, 5), (5, 6), (0, 0)]),
    _row("numbers of texts", lambda t: [_pair(t).n_sequences, t("a").n_sequences, _pair(t).is_fast], [2, 1, True]),
    _row("texts of tokens", lambda t: [_pair(t).token_to_sequence(place) for place in (1, 3, 5, 8)],
         [0, 0, 1, 1]),
    _row("words of tokens", lambda t: [_pair(t).token_to_word(place) for place in (1, 2, 3, 7)],
         [0, 0, 1, 1]),
    _row("tokens of words",
         lambda t: [list(_pair(t).word_to_tokens(word, sequence_index=text)) for text in (0, 1) for word in (0, 1)],
         [[1, 3], [3, 4], [5, 7], [7, 9]]),
    _row("tokens of words that are missing", lambda t: _pair(t).word_to_tokens(2), None),
    _row("characters of tokens", lambda t: [list(_pair(t).token_to_chars(place)) for place in (2, 3, 6, 8)],
         [[1, 2], [3, 4], [2, 3], [5, 6]]),
    _row("characters of special tokens", lambda t: _pair(t).token_to_chars(0), None),
    _row("tokens of characters",
         lambda t: [_pair(t).char_to_token(place, sequence_index=text) for text in (0, 1) for place in (1, 2, 3, 5)],
         [2, None, 3, None, 5, 6, None, 8]),
    _row("characters of words",
         lambda t: [list(_pair(t).word_to_chars(word, sequence_index=text)) for text in (0, 1) for word in (0, 1)],
         [[0, 2], [3, 4], [0, 3], [4, 6]]),
    _row("words of characters",
         lambda t: [_pair(t).char_to_word(place, sequence_index=text) for text in (0, 1) for place in (1, 3, 5)],
         [0, 1, None, 0, None, 1]),
    _row("places in the second row of a batch",
         lambda t: [
             _two(t).token_to_sequence(1, 5), _two(t).token_to_word(1, 3), list(_two(t).word_to_tokens(1, 1)),
             list(_two(t).token_to_chars(1, 6)), _two(t).char_to_token(1, 1), list(_two(t).word_to_chars(1, 1)),
             _two(t).char_to_word(1, 3), list(_two(t).word_to_tokens(1, 1, 1)), _two(t).char_to_token(1, 4, 1),
             _two(t).char_to_word(1, 4, 1), list(_two(t).word_to_chars(1, 1, 1)),
         ],
         [1, 1, [3, 4], [2, 3], 2, [3, 4], 1, [7, 9], 7, 1, [4, 6]]),
    _row("texts and words of rows", lambda t: [_two(t).sequence_ids(0), _two(t).word_ids(1), _two(t).tokens(0)[:4]],
         [[None, 0, 0, 0, None, 1, None, None, None, None], [None, 0, 0, 1, None, 0, 0, 1, 1, None],
          ["[CLS]", "a", "c", "##b"]]),
    _row("parts of an encoding",
         lambda t: [_two(t)["input_ids"][0][:2], _two(t)[1].ids[5], _two(t).input_ids[1][1], len(_two(t)),
                    sorted(_two(t).keys()), "input_ids" in _two(t)],
         [[2, 5], 13, 7, 3, ["attention_mask", "input_ids", "token_type_ids"], True]),
    _row("rows of a padded batch", lambda t: dict(t.pad({"input_ids": [[5, 6], [7]]})[0:1]),
         {"input_ids": [[5, 6]], "attention_mask": [[1, 1]]}),
    _row("copied encodings", lambda t: [copy.deepcopy(_pair(t)).word_ids(), copy.deepcopy(_pair(t))["input_ids"]],
         [[None, 0, 0, 1, None, 0, 0, 1, 1, None], [2, *CB_E, 3, *ABC_CC, 3]]),
    _row("tensors of encodings",
         lambda t: _lists(t("cb e").convert_to_tensors("pt", prepend_batch_axis=True)),
         {"input_ids": ["Tensor", "int64", [[2, *CB_E, 3]]], "token_type_ids": ["Tensor", "int64", [[0] * 5]],
          "attention_mask": ["Tensor", "int64", [[1] * 5]]}),
    _row("encodings on a device", lambda t: _lists(t("a", return_tensors="pt").to("cpu"))["input_ids"],
         ["Tensor", "int64", [[2, 5, 3]]]),
)  # fmt: skip
WINDOWS = {"truncation": True, "max_length": 5, "return_overflowing_tokens": True}
CALLS: Sequence[Row] = (
    _row("tensors of a text", lambda t: _lists(t("cb e", return_tensors="pt"))["input_ids"],
         ["Tensor", "int64", [[2, *CB_E, 3]]]),
    _row("arrays of texts", lambda t: _lists(t(["a", "cb e"], return_tensors="np", padding=True))["attention_mask"],
         ["ndarray", "int64", [[1, 1, 1, 0, 0], [1] * 5]]),
    _row("arrays of texts of other lengths",
         lambda t: [list(map(int, row)) for row in t(["a", "cb e"], return_tensors="np")["input_ids"]],
         [[2, 5, 3], [2, *CB_E, 3]]),
    _row("tensors of texts of other lengths", lambda t: t(["a", "cb e"], return_tensors="pt"), Refused("padding")),
    _row("fields that are left out",
         lambda t: sorted(t("a", return_attention_mask=False, return_token_type_ids=False)), ["input_ids"]),
    _row("fields of the model", lambda t: list(t("a")), ["input_ids", "attention_mask"],
         model_input_names=["input_ids", "attention_mask"]),
    _row("all fields", lambda t: dict(t(
        "cb e", "a", return_special_tokens_mask=True, return_length=True, return_offsets_mapping=True)),
        {"input_ids": [2, *CB_E, 3, 5, 3], "token_type_ids": [0] * 5 + [1, 1], "attention_mask": [1] * 7,
         "special_tokens_mask": [1, 0, 0, 0, 1, 0, 1],
         "offset_mapping": [(0, 0), (0, 1), (1, 2), (3, 4), (0, 0), (0, 1), (0, 0)], "length": [7]}),
    _row("lengths of a batch", lambda t: t(["a", "cb e"], return_length=True)["length"], [3, 5]),
    _row("texts in words",
         lambda t: [t(["cb e", "abc"], is_split_into_words=True)[what] for what in ("input_ids",)]
         + [t(["cb e", "abc"], is_split_into_words=True).word_ids()],
         [[2, *CB_E, 13, 10, 3], [None, 0, 0, 0, 1, 1, None]]),
    _row("a batch of texts in words, with seconds",
         lambda t: t([["a", "b"], ["c"]], [["d"], ["e", "a"]], is_split_into_words=True)["input_ids"],
         [[2, 5, 6, 3, 8, 3], [2, 7, 3, 11, 5, 3]]),
    _row("pairs as tuples", lambda t: t([("a", "b"), ("c", "d")])["input_ids"], [[2, 5, 3, 6, 3], [2, 7, 3, 8, 3]]),
    _row("parts of one text", lambda t: dict(t("a b c d e a", **WINDOWS, return_offsets_mapping=True)),
         {"input_ids": [[2, 5, 6, 7, 3], [2, 8, 11, 5, 3]], "token_type_ids": [[0] * 5] * 2,
          "attention_mask": [[1] * 5] * 2,
          "offset_mapping": [[(0, 0), (0, 1), (2, 3), (4, 5), (0, 0)], [(0, 0), (6, 7), (8, 9), (10, 11), (0, 0)]],
          "overflow_to_sample_mapping": [0, 0]}),
    _row("parts of texts with a stride, in tensors",
         lambda t: [_lists(t(["a b c d e", "a"], **WINDOWS, stride=1, padding=True, return_tensors="pt"))[name][2]
                    for name in ("input_ids", "overflow_to_sample_mapping")],
         [[[2, 5, 6, 7, 3], [2, 7, 8, 11, 3], [2, 5, 3, 0, 0]], [0, 0, 1]]),
    _row("parts of first texts", lambda t: t("a b c", "d e", max_length=7, truncation="only_first", stride=1,
                                             return_overflowing_tokens=True)["input_ids"],
         [[2, 5, 6, 3, 8, 11, 3], [2, 6, 7, 3, 8, 11, 3]]),
    _row("a length without truncation", lambda t: t("cb e", max_length=4)["input_ids"], [2, 7, 9, 3]),
    _row("a length and no truncation", lambda t: t("cb e", max_length=4, truncation=False)["input_ids"],
         [2, *CB_E, 3]),
    _row("the tokenizer's own length", lambda t: [t("cb e", truncation=True)["input_ids"], len(t("cb e")["input_ids"]),
                                                  t("a", padding="max_length")["input_ids"]],
         [[2, 7, 9, 3], 5, [2, 5, 3, 0]], model_max_length=4),
    _row("sides in a call", lambda t: [t("a", padding="max_length", max_length=5, padding_side=side)["input_ids"]
                                       for side in ("left", "right", None)],
         [[0, 0, 2, 5, 3], [2, 5, 3, 0, 0], [0, 0, 2, 5, 3]], padding_side="left"),
    _row("a side of truncation", lambda t: t("a b c d", truncation=True, max_length=4)["input_ids"], [2, 7, 8, 3],
         truncation_side="left"),
    _row("a multiple with truncation", lambda t: _raised(
        lambda: t("a", padding=True, truncation=True, max_length=7, pad_to_multiple_of=4)), "ValueError"),
    _row("multiples of a longest length",
         lambda t: t("a", padding="max_length", max_length=5, pad_to_multiple_of=4)["attention_mask"],
         [1, 1, 1, 0, 0, 0, 0, 0]),
    _row("padding without a token", lambda t: _raised(lambda: t(["a"], padding=True)), "ValueError", pad_token=None),
    _row("texts of no type", lambda t: [_raised(lambda: t(5)), _raised(lambda: t([5])), _raised(lambda: t(["a"], "b")),
                                        _raised(lambda: t(["a"], ["b", "c"]))],
         ["ValueError", "ValueError", "TypeError", "ValueError"]),
    _row("texts and labels",
         lambda t: [dict(t("a", text_target="b"))["labels"], t(text_target="b")["input_ids"]],
         [[2, 6, 3], [2, 6, 3]]),
    _row("ids", lambda t: [t.encode("cb e"), t.encode("a", "b"), t.encode("a", add_special_tokens=False),
                           t.encode("cb e", truncation=True, max_length=3),
                           t.encode("a", return_tensors="pt").tolist()],
         [[2, *CB_E, 3], [2, 5, 3, 6, 3], [5], [2, 7, 3], [[2, 5, 3]]]),
    _row("tokens", lambda t: [t.tokenize("cb e"), t.tokenize("a", add_special_tokens=True), t.tokenize("a", "b"),
                              t.tokenize("a", pair="b", add_special_tokens=True)],
         [["c", "##b", "e"], ["[CLS]", "a", "[SEP]"], ["a", "b"], ["[CLS]", "a", "[SEP]", "b", "[SEP]"]]),
    _row("longest texts", lambda t: [t.max_len_single_sentence, t.max_len_sentences_pair,
                                     t.num_special_tokens_to_add(), t.num_special_tokens_to_add(pair=True)],
         [7, 6, 2, 3], model_max_length=9),
    _row("an empty batch", lambda t: [t.batch_decode([]), t("")["input_ids"], t([""])["input_ids"]],
         [[], [2, 3], [[2, 3]]], since="5.23.1"),
)  # fmt: skip
ROWS_TO_PAD = [
    {"input_ids": [5, 6, 7], "token_type_ids": [0, 1, 1]},
    {"input_ids": [8], "token_type_ids": [1]},
]
PADDED: Sequence[Row] = (
    _row("rows to pad", lambda t: dict(t.pad(ROWS_TO_PAD)),
         {"input_ids": [[5, 6, 7], [8, 0, 0]], "token_type_ids": [[0, 1, 1], [1, 0, 0]],
          "attention_mask": [[1, 1, 1], [1, 0, 0]]}),
    _row("rows to pad to the left, in tensors", lambda t: _lists(t.pad(ROWS_TO_PAD, return_tensors="pt")),
         {"input_ids": ["Tensor", "int64", [[5, 6, 7], [0, 0, 8]]],
          "token_type_ids": ["Tensor", "int64", [[0, 1, 1], [0, 0, 1]]],
          "attention_mask": ["Tensor", "int64", [[1, 1, 1], [0, 0, 1]]]}, padding_side="left"),
    _row("tensors to pad",
         lambda t: _lists(t.pad({"input_ids": [torch.tensor([5, 6]), torch.tensor([7])]}))["input_ids"],
         ["Tensor", "int64", [[5, 6], [7, 0]]]),
    _row("arrays to pad", lambda t: _lists(t.pad({"input_ids": [np.array([5, 6]), np.array([7])]}))["input_ids"],
         ["ndarray", "int64", [[5, 6], [7, 0]]]),
    _row("a row to pad", lambda t: dict(t.pad({"input_ids": [5]}, padding="max_length", max_length=3)),
         {"input_ids": [5, 0, 0], "attention_mask": [1, 0, 0]}),
    _row("a row to pad on the other side",
         lambda t: t.pad({"input_ids": [5]}, padding="max_length", max_length=3, padding_side="left")["input_ids"],
         [0, 0, 5]),
    _row("rows without masks", lambda t: dict(t.pad({"input_ids": [[5, 6], [7]]}, return_attention_mask=False)),
         {"input_ids": [[5, 6], [7, 0]]}),
    _row("rows that are not padded", lambda t: t.pad({"input_ids": [[5, 6], [7]]}, padding=False)["input_ids"],
         [[5, 6], [7]]),
    _row("rows without ids", lambda t: _raised(lambda: t.pad({"labels": [[5]]})), "ValueError"),
    _row("ids under another name", lambda t: dict(t.pad({"ids": [[5, 6], [7]]})), {"ids": [[5, 6], [7, 0]]},
         model_input_names=["ids"]),
    _row("empty rows", lambda t: dict(t.pad({"input_ids": [[], [7]]})),
         {"input_ids": [[0], [7]], "attention_mask": [[0], [1]]}),
    _row("longest rows, multiples", lambda t: t.pad({"input_ids": [[5, 6], [7]]}, pad_to_multiple_of=4)["input_ids"],
         [[5, 6, 0, 0], [7, 0, 0, 0]]),
    _row("special tokens of rows to pad",
         lambda t: t.pad({"input_ids": [[2, 5, 3], [5]], "special_tokens_mask": [[1, 0, 1], [0]]})[
             "special_tokens_mask"],
         [[1, 0, 1], [0, 1, 1]]),
)  # fmt: skip
DECODED: Sequence[Row] = (
    _row("a text of ids", lambda t: [t.decode(6), t.decode([7, 9, 11, 12]), t.decode(torch.tensor([2, 5, 3])),
                                     t.decode(np.array([5, 3]), skip_special_tokens=True)],
         ["b", "cb e.", "[CLS] a [SEP]", "a"], clean_up_tokenization_spaces=True),
    _row("texts of rows", lambda t: [t.batch_decode([[7, 9], [5]]), t.batch_decode(torch.tensor([[2, 5], [6, 0]])),
                                     t.batch_decode(np.array([[2, 5], [6, 0]]), skip_special_tokens=True)],
         [["cb", "a"], ["[CLS] a", "b [PAD]"], ["a", "b"]]),
    _row("texts of an encoding", lambda t: t.batch_decode(t(["a b", "c"])["input_ids"]),
         ["[CLS] a b [SEP]", "[CLS] c [SEP]"]),
    _row("tokens of ids", lambda t: [t.convert_ids_to_tokens(9), t.convert_ids_to_tokens([2, 9, 3]),
                                     t.convert_ids_to_tokens([2, 9, 3], skip_special_tokens=True),
                                     t.convert_ids_to_tokens(torch.tensor([5, 9]))],
         ["##b", ["[CLS]", "##b", "[SEP]"], ["##b"], ["a", "##b"]]),
    _row("ids of tokens", lambda t: [t.convert_tokens_to_ids("e"), t.convert_tokens_to_ids(["e", "zz"]),
                                     t.convert_tokens_to_string(["c", "##b", "e"])], [11, [11, 1], "cb e"]),
    _row("special tokens of ids",
         lambda t: t.get_special_tokens_mask([2, 5, 0, 1, 3], already_has_special_tokens=True), [1, 0, 1, 1, 1]),
    _row("sizes", lambda t: [t.vocab_size, len(t), t.get_vocab()["##c"], t.get_added_vocab().get("[MASK]"), bool(t)],
         [14, 14, 10, None, True]),
)  # fmt: skip
ENCODING_ROWS: Sequence[Row] = (*PLACES, *CALLS, *PADDED, *DECODED)
