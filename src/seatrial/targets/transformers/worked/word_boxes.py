"""Worked examples of tokenizers that take words with boxes, paths or labels: each token gets those of its word.

What is due comes from a plain loop: the tokens of each word alone, in a frame of special tokens, cut and padded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row

SPECIALS: Mapping[str, Mapping[str, str]] = {
    "pieces": {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"},
    "bytes": {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
    "unigram": {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
}
PIECES = ("total", "2024", "-", "11", "eu", "##ro", "a", "##b", "##c", "what", "is", ".")
MERGES = (("t", "o"), ("Ġ", "to"), ("2", "0"), ("e", "u"), ("w", "h"), ("Ġ", "wh"), ("i", "s"))
UNIGRAM = (("▁", -2.0), ("▁total", -1.0), ("2024", -1.0), ("-", -1.0), ("11", -1.0), ("eu", -1.0), ("ro", -1.0),
           ("▁what", -1.0), ("is", -1.0), ("a", -1.5), ("b", -1.5), ("c", -1.5), (".", -1.0))  # fmt: skip
"""Many words begin with a blank that is a token of its own."""
DOCUMENTS: Sequence[Sequence[str]] = (
    ("total", "2024-11", "euro", "abc."),
    ("abc", "11"),
    ("2024", "is", "a-b", "total", "euro"),
)
QUESTIONS = ("what is total", "euro", "abc what")


class Kind(NamedTuple):
    """A kind of tokenizer: its vocabulary, and its frame of special tokens."""

    vocabulary: str
    first: Sequence[str] = ()
    between: Sequence[str] = ()
    last: Sequence[str] = ()
    paths: bool = False
    """Whether words have paths, and not boxes."""


KINDS: Mapping[str, Kind] = {
    "LayoutLMv2": Kind("pieces", ("[CLS]",), ("[SEP]",), ("[SEP]",)),
    "LayoutLMv3": Kind("bytes", ("<s>",), ("</s>", "</s>"), ("</s>",)),
    "LayoutXLM": Kind("unigram", ("<s>",), ("</s>", "</s>"), ("</s>",)),
    "Udop": Kind("unigram", (), ("</s>",), ("</s>",)),
    "MarkupLM": Kind("bytes", ("<s>",), ("</s>",), ("</s>",), paths=True),
}
TAGS = {"html": 0, "body": 1, "div": 2, "li": 3}
DEPTH, WIDTH = 5, 9
OTHER_BOXES = {
    "cls_token_box": [1, 2, 3, 4], "sep_token_box": [5, 6, 7, 8], "pad_token_box": [9, 9, 9, 9], "pad_token_label": -7,
}  # fmt: skip
MADE: Sequence[Mapping[str, Any]] = ({}, {"only_label_first_subword": False}, OTHER_BOXES)
"""Options of the class."""
CALLS: Sequence[Mapping[str, Any]] = (
    {}, {"padding": True}, {"padding": True, "padding_side": "left"}, {"padding": "max_length", "max_length": 24},
    {"padding": True, "pad_to_multiple_of": 8, "return_tensors": "pt"}, {"truncation": True, "max_length": 7},
    {"truncation": True, "max_length": 7, "padding": "max_length", "padding_side": "left"},
    {"truncation": True, "max_length": 8, "stride": 2, "return_overflowing_tokens": True, "padding": True},
    {"add_special_tokens": False},
)  # fmt: skip
"""Options of a call."""


def _vocabulary(kind: Kind) -> dict[str, Any]:
    """Return the arguments of a class of a release from 5 on."""
    from tokenizers import pre_tokenizers

    special = list(SPECIALS[kind.vocabulary].values())
    if kind.vocabulary == "unigram":
        return {"vocab": [*((one, 0.0) for one in special), *UNIGRAM, ("<mask>", 0.0)]}
    letters = PIECES if kind.vocabulary == "pieces" else sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = [] if kind.vocabulary == "pieces" else ["".join(pair) for pair in MERGES]
    numbers = {token: at for at, token in enumerate([*special, *letters, *merged, "<mask>"])}
    return {"vocab": numbers} if kind.vocabulary == "pieces" else {"vocab": numbers, "merges": list(MERGES)}


def _file(kind: Kind) -> str:
    """Return a file of the tokenizer, for releases before 5."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    given = _vocabulary(kind)
    if kind.vocabulary == "pieces":
        core = Tokenizer(models.WordPiece(given["vocab"], unk_token="[UNK]"))
        core.normalizer, core.pre_tokenizer = (
            normalizers.BertNormalizer(),
            pre_tokenizers.BertPreTokenizer(),
        )
    elif kind.vocabulary == "bytes":
        core = Tokenizer(models.BPE(given["vocab"], given["merges"], continuing_subword_prefix=""))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    else:
        core = Tokenizer(models.Unigram(given["vocab"], unk_id=3))
        core.pre_tokenizer = pre_tokenizers.Metaspace()
    ids = [(one, core.token_to_id(one)) for one in dict.fromkeys((*kind.first, *kind.between, *kind.last))]
    single, pair = ([*kind.first, "$A", *kind.last], [*kind.first, "$A", *kind.between, "$B", *kind.last])
    core.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    path = Path(new_folder()) / "tokenizer.json"
    core.save(str(path))
    return str(path)


@cache
def _file_of(kind: Kind) -> str:
    return _file(kind)


def _written(kind: Kind) -> dict[str, str]:
    """Return files of the vocabulary, for classes in Python of releases before 5."""
    folder, given = Path(new_folder()), _vocabulary(kind)
    if kind.vocabulary == "pieces":
        (folder / "vocab.txt").write_text("\n".join(given["vocab"]), encoding="utf-8")
        return {"vocab_file": str(folder / "vocab.txt")}
    (folder / "vocab.json").write_text(json.dumps(given["vocab"]), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in MERGES)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"vocab_file": str(folder / "vocab.json"), "merges_file": str(folder / "merges.txt")}


def _new(made: Any, kind: Kind, options: Mapping[str, Any]) -> Any:
    given: dict[str, Any] = {**options}
    if kind.paths:
        given = {"tags_dict": dict(TAGS), "max_depth": DEPTH, "max_width": WIDTH, "pad_width": WIDTH + 1,
                 "add_prefix_space": True, **options}  # fmt: skip
    elif kind.vocabulary == "bytes":
        given["add_prefix_space"] = True
    if not before("transformers", "5")(None):
        return made(**_vocabulary(kind), **given)
    if not made.__name__.endswith("Fast"):
        if kind.vocabulary == "unigram":
            raise NotServed("a file of SentencePiece")
        return made(**_written(kind), **given)
    files = _written(kind) if kind.paths else {}
    return made(**files, tokenizer_file=_file_of(kind), **given)


def _places(count: int, at: int, kind: Kind) -> list[Any]:
    """Return the boxes or paths of words."""
    if kind.paths:
        return [f"/html/body/div[{at + 1}]/li[{one + 1}]/span" for one in range(count)]
    return [[10 * one, at, 10 * one + 7, at + 5] for one in range(count)]


class Token(NamedTuple):
    """A token of a row, with the number of its word."""

    id: int
    place: Any
    label: int


def _tokens(tokenizer: Any, kind: Kind, words: Sequence[str], places: Sequence[Any], labels: Sequence[int],
            whole: bool) -> list[Token]:  # fmt: skip
    """Return the tokens of words; those after the first of a word have no label, or all of them have one."""
    name = "xpaths" if kind.paths else "boxes"
    found = []
    for word, place, label in zip(words, places, labels, strict=True):
        ids = tokenizer([word], **{name: [place]}, add_special_tokens=False)["input_ids"]
        none = tokenizer.pad_token_label
        found += [
            Token(one, place, label if whole or not at else none) for at, one in enumerate(map(int, ids))
        ]
    return found


def _path(place: str) -> tuple[list[int], list[int]]:
    """Return the tags and the numbers of a path; those that the table does not name have one number more."""
    tags, numbers = [], []
    for step in place.strip("/").split("/"):
        name, _, number = step.partition("[")
        tags.append(TAGS.get(name, len(TAGS)))
        numbers.append(min(int(number.strip("]") or 0), WIDTH))
    rest = DEPTH - len(tags)
    return tags + [len(TAGS) + 1] * rest, numbers + [WIDTH + 1] * rest


def _shown(kind: Kind, row: Sequence[Token], labelled: bool) -> dict[str, list[Any]]:
    """Return the fields of a row."""
    found: dict[str, list[Any]] = {"input_ids": [one.id for one in row]}
    if kind.paths:
        pads = ([len(TAGS) + 1] * DEPTH, [WIDTH + 1] * DEPTH)
        pairs = [_path(one.place) if isinstance(one.place, str) else pads for one in row]
        found |= {"xpath_tags_seq": [one for one, _ in pairs], "xpath_subs_seq": [one for _, one in pairs]}
    else:
        found["bbox"] = [one.place for one in row]
    return found | ({"labels": [one.label for one in row]} if labelled else {})


class Asked(NamedTuple):
    """A call: what kind of text, and its options."""

    made: Mapping[str, Any]
    call: Mapping[str, Any]
    paired: bool
    longest: int = 0
    """Tokens of the longest question, by which a length is longer."""

    @property
    def max_length(self) -> int:
        """The length of a row."""
        return int(self.call["max_length"]) + self.longest


def _framed(tokenizer: Any, kind: Kind, asked: Asked, at: int) -> list[list[Token]]:
    """Return the rows of a document, cut in windows where that is asked for."""
    none, empty = tokenizer.pad_token_label, "" if kind.paths else tokenizer.pad_token_box
    words = DOCUMENTS[at]
    whole = not asked.made.get("only_label_first_subword", True)
    body = _tokens(tokenizer, kind, words, _places(len(words), at, kind), range(len(words)), whole)
    ends = {
        "[CLS]": "cls_token_box",
        "<s>": "cls_token_box",
        "[SEP]": "sep_token_box",
        "</s>": "sep_token_box",
    }

    def special(names: Sequence[str]) -> list[Token]:
        if not asked.call.get("add_special_tokens", True):
            return []
        boxes = [0 if kind.paths else getattr(tokenizer, ends[name]) for name in names]
        ids = tokenizer.convert_tokens_to_ids(list(names))
        return [Token(one, box, none) for one, box in zip(ids, boxes, strict=True)]

    before_, after = special(kind.first), special(kind.last)
    if asked.paired:
        parts = QUESTIONS[at].split()
        places = ["/html" if kind.paths else [0] * 4] * len(parts)
        question = _tokens(tokenizer, kind, parts, places, [none] * len(parts), True)
        before_ = [*before_, *(Token(one.id, empty or 0, none) for one in question), *special(kind.between)]
    space = len(body)
    if asked.call.get("truncation"):
        space = asked.max_length - len(before_) - len(after)
    step = max(1, space - asked.call.get("stride", 0))
    starts = range(0, max(1, len(body) - space + step), step)
    if not asked.call.get("return_overflowing_tokens"):
        starts = range(1)
    return [[*before_, *body[start : start + space], *after] for start in starts]


def _padded(tokenizer: Any, kind: Kind, asked: Asked, rows: Sequence[list[Token]]) -> list[list[Token]]:
    wanted = asked.call.get("padding")
    if not wanted:
        return list(rows)
    length = max(map(len, rows)) if wanted is True else asked.max_length
    length += -length % asked.call.get("pad_to_multiple_of", 1)
    place = 0 if kind.paths else tokenizer.pad_token_box
    pad = Token(tokenizer.pad_token_id, place, tokenizer.pad_token_label)
    left = asked.call.get("padding_side") == "left"
    pads = [[pad] * (length - len(row)) for row in rows]
    return [[*more, *row] if left else [*row, *more] for row, more in zip(rows, pads, strict=True)]


def _call(tokenizer: Any, kind: Kind, asked: Asked, labelled: bool) -> Any:
    options = {name: one for name, one in asked.call.items() if name != "padding_side"}
    if asked.paired and "truncation" in options:
        options |= {"truncation": "only_second"}
    if "max_length" in options:
        options["max_length"] = asked.max_length
    tokenizer.padding_side = asked.call.get("padding_side", "right")
    words = [list(one) for one in DOCUMENTS]
    places = [_places(len(one), at, kind) for at, one in enumerate(words)]
    options["xpaths" if kind.paths else "boxes"] = places
    if labelled:
        options["node_labels" if kind.paths else "word_labels"] = [list(range(len(one))) for one in words]
    texts = (list(QUESTIONS), words) if asked.paired else (words,)
    return tokenizer(*texts, return_token_type_ids=False, **options)


def _longest(tokenizer: Any, kind: Kind) -> int:
    """Return the number of tokens of the longest question, with those next to it."""
    name = "xpaths" if kind.paths else "boxes"
    found = []
    for one in QUESTIONS:
        words = one.split()
        ids = tokenizer(words, **{name: _places(len(words), 0, kind)}, add_special_tokens=False)["input_ids"]
        found.append(len(ids) + len(kind.between))
    return max(found)


def _due(tokenizer: Any, kind: Kind, asked: Asked) -> list[dict[str, list[Any]]]:
    rows = [row for at in range(len(DOCUMENTS)) for row in _framed(tokenizer, kind, asked, at)]
    return [_shown(kind, row, not asked.paired) for row in _padded(tokenizer, kind, asked, rows)]


def _unlike(found: Any, due: Sequence[Mapping[str, list[Any]]], fields: Sequence[str]) -> list[str]:
    wrong = []
    for field in fields:
        have = [one if isinstance(one, list) else one.tolist() for one in found[field]]
        right = [one[field] for one in due]
        if len(have) != len(right):
            wrong.append(f"{len(have)} rows, {len(right)} are due")
        pairs = enumerate(zip(have, right, strict=False))
        wrong += [f"row {at}, {field}: {one}, {other} is due" for at, (one, other) in pairs if one != other][
            :1
        ]
    return wrong


def _wrong(name: str, labels: bool, made: Any) -> list[str]:
    """Return the calls whose tokens do not have the places, or the labels, of their words."""
    kind, wrong = KINDS[name], []
    in_python = before("transformers", "5")(None) and not made.__name__.endswith("Fast")
    for paired, own, call in product((False,) if labels else (False, True), MADE, CALLS):
        if call.get("return_overflowing_tokens") and (in_python or labels):
            continue  # another form; and a window may begin inside a word
        given = {"pad_token_label": -7} if kind.paths and own is OTHER_BOXES else dict(own)
        if name == "Udop":
            given.pop("cls_token_box", None)
        tokenizer = _new(made, kind, given)
        asked = Asked(given, call, paired, _longest(tokenizer, kind) if paired else 0)
        due = _due(tokenizer, kind, asked)
        fields = [field for field in due[0] if (field == "labels") == labels]
        said = _unlike(_call(tokenizer, kind, asked, not paired), due, fields)
        wrong += [f"{paired=}, {given}, {dict(call)}, {one}" for one in said]
    return wrong[:4]


FIRST = KnownFailure(
    "a token that begins where its word begins has the label of the word, though another one is before it",
    finding="Transformers: labels of words whose first token is a blank",
    releases=before("transformers", "5.24"),
)


def _rows(name: str, end: str) -> list[Row]:
    place = f"transformers:{name}Tokenizer{end}"
    known = None if name == "LayoutLMv2" or not end else FIRST
    labels = "4.57" if known or name == "LayoutLMv2" else "5.24"
    what = "paths" if KINDS[name].paths else "boxes"
    return [
        Row("texts", place, f"words with {what}", partial(_wrong, name, False), [], since="4.57"),
        Row("texts", place, "labels of words", partial(_wrong, name, True), [], since=labels, known=known),
    ]


WORD_BOX_ROWS: Sequence[Row] = tuple(
    row for name in KINDS for end in ("", "Fast") for row in _rows(name, end)
)
