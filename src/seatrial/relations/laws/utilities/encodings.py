"""R31.encodings: texts, pairs and conversations become the tokens that plain lists give, with masks and padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

ENCODINGS = relation_of(
    "encodings",
    "encodings-are-those-of-plain-lists",
    "Special tokens, truncation, strides, padding on both sides, masks and types of texts, of pairs and of "
    "conversations are those of plain lists, after other calls too.",
)
FIRST, BETWEEN, PADDING = "<cls>", "<sep>", "<pad>"
Text = tuple[str, str | None]
"""A text of letters, each a token, and one that follows it or None."""
SINGLE: Sequence[Text] = (("abcdefghijk", None), ("lm", None), ("nopqrs", None))
PAIRED: Sequence[Text] = (("abcd", "efghijklm"), ("nopqrstuv", "wx"), ("y", "z"))
NAMES = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask")


def _encoded_cases(case: Numbers) -> Iterator[Arguments]:
    """Yield texts with options; an option of one call says nothing of the next one."""
    paddings: Sequence[Mapping[str, Any]] = (
        {}, {"padding": True}, {"padding": "max_length", "max_length": 15},
        {"padding": "longest", "pad_to_multiple_of": 4},
    )  # fmt: skip
    for texts, padding, side in product((SINGLE, PAIRED), paddings, ("left", "right")):
        yield texts, {**padding, "padding_side": side}
    yield SINGLE, {"add_special_tokens": False, "padding": True}
    yield PAIRED, {"add_special_tokens": False}
    for cut, side in product((True, "only_first"), ("left", "right")):
        yield SINGLE, {"truncation": cut, "max_length": 7, "truncation_side": side, "padding": True}
    yield SINGLE, {"truncation": True, "model_max_length": 6}
    yield SINGLE, {"truncation": True, "max_length": 6, "padding": "max_length", "padding_side": "left"}
    yield SINGLE, {"padding": "max_length", "model_max_length": 12}
    yield SINGLE, {"truncation": False, "padding": True}
    for cut, side in product(("longest_first", "only_first", "only_second"), ("left", "right")):
        yield [("abcdefg", "hijklm")], {"truncation": cut, "max_length": 11, "truncation_side": side}
    for stride, side in product((0, 2), ("left", "right")):
        windows = {"truncation": True, "max_length": 7, "stride": stride, "return_overflowing_tokens": True}
        yield SINGLE, {**windows, "truncation_side": side, "padding": True}
    yield (
        PAIRED[:1],
        {"truncation": "only_second", "max_length": 12, "stride": 1, "return_overflowing_tokens": True},
    )
    yield SINGLE, {}
    yield SINGLE[:1], {"padding": True}


def _cut(one: str, space: int, side: str) -> str:
    return one[len(one) - space :] if side == "left" and space < len(one) else one[:space]


def _windows(one: str, space: int, stride: int, side: str) -> list[str]:
    """Return parts of a text, each with the last letters of the one before; from the end where that side is cut."""
    if len(one) <= space:
        return [one]
    whole = one[::-1] if side == "left" else one
    found: list[str] = []
    start = 0
    while not found or start + stride < len(whole):
        found.append(whole[start : start + space])
        start += space - stride
    return [part[::-1] for part in found] if side == "left" else found


def encoded(texts: Sequence[Text], options: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return tokens, masks and types of texts by the options' names in Transformers."""
    special = options.get("add_special_tokens", True)
    limit = options.get("max_length", options.get("model_max_length"))
    rows: list[tuple[int, list[str], list[int]]] = []
    for number, (first, second) in enumerate(texts):
        space = limit - (0 if not special else 2 if second is None else 3) if limit else 0
        cut, side = options.get("truncation", False), options.get("truncation_side", "right")
        parts: list[Text] = [(first, second)]
        if cut and len(first) + len(second or "") > space:
            stride = options.get("stride", 0)
            if second is None:
                parts = [(one, None) for one in _windows(first, space, stride, side)]
            elif cut == "only_first":
                parts = [(one, second) for one in _windows(first, space - len(second), stride, side)]
            elif cut == "only_second":
                parts = [(first, one) for one in _windows(second, space - len(first), stride, side)]
            else:
                sizes = [len(first), len(second)]
                while sum(sizes) > space:
                    sizes[0 if sizes[0] >= sizes[1] else 1] -= 1
                parts = [(_cut(first, sizes[0], side), _cut(second, sizes[1], side))]
            if not options.get("return_overflowing_tokens"):
                parts = parts[:1]
        for one, other in parts:
            tokens = [FIRST, *one, BETWEEN] if special else [*one]
            types = [0] * len(tokens)
            if other is not None:
                tokens += [*other, BETWEEN] if special else [*other]
                types += [1] * (len(tokens) - len(types))
            rows.append((number, tokens, types))
    width = _width([len(tokens) for _, tokens, _ in rows], options, limit)
    left = options.get("padding_side", "right") == "left"
    found: dict[str, list[Any]] = {name: [] for name in NAMES}
    for _, tokens, types in rows:
        gap = max(0, (width or 0) - len(tokens))
        values: tuple[list[Any], ...] = (
            tokens,
            [1] * len(tokens),
            types,
            [int(token.startswith("<")) for token in tokens],
        )
        for name, value, fill in zip(NAMES, values, (PADDING, 0, 0, 1), strict=True):
            found[name].append([fill] * gap + value if left else value + [fill] * gap)
    if options.get("return_overflowing_tokens"):
        found["overflow_to_sample_mapping"] = [number for number, *_ in rows]
    return found


def _width(lengths: Sequence[int], options: Mapping[str, Any], limit: int | None) -> int | None:
    """Return the length that rows are padded to; None if they are not."""
    padding = options.get("padding", False)
    if not padding:
        return None
    width = limit if padding == "max_length" and limit else max(lengths)
    multiple = options.get("pad_to_multiple_of") or 1
    return -(-width // multiple) * multiple


def _padded_cases(case: Numbers) -> Iterator[Arguments]:
    rows = [{"input_ids": [*one], "special_tokens_mask": [0] * len(one)} for one in ("abcde", "f", "ghi")]
    for side in ("left", "right"):
        yield rows, {"padding": True, "padding_side": side}
        yield rows, {"padding": "max_length", "max_length": 9, "padding_side": side}
        yield rows, {"padding": True, "pad_to_multiple_of": 4, "padding_side": side}
    masked = [{**row, "attention_mask": [0, *[1] * (len(row["input_ids"]) - 1)]} for row in rows]
    yield masked, {"padding": True, "padding_side": "left"}
    yield rows, {"padding": "max_length", "max_length": 3}
    yield rows[:1], {"padding": True}


def padded(rows: Sequence[Mapping[str, list[Any]]], options: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return rows of tokens padded to one length, with a mask."""
    width = _width([len(row["input_ids"]) for row in rows], options, options.get("max_length"))
    left = options.get("padding_side", "right") == "left"
    found: dict[str, list[Any]] = {}
    for row in rows:
        size = len(row["input_ids"])
        values = {"attention_mask": [1] * size, **row}
        fills = {"input_ids": PADDING, "special_tokens_mask": 1}
        for name, value in values.items():
            gap = [fills.get(name, 0)] * max(0, (width or 0) - size)
            found.setdefault(name, []).append(gap + value if left else value + gap)
    return found


Turns = Sequence[tuple[str, str]]
CHATS: Sequence[Turns] = (
    (("user", "ab"), ("assistant", "cdef"), ("user", "g"), ("assistant", "hi")),
    (("system", "jk"), ("user", "l"), ("assistant", "m")),
)


def _chat_cases(case: Numbers) -> Iterator[Arguments]:
    """Yield conversations with options, one by itself and several."""
    yield from (([one], {}) for one in CHATS)
    for side in ("left", "right"):
        yield CHATS, {"padding": True, "padding_side": side}
    yield [CHATS[0][:3]], {"add_generation_prompt": True}
    yield CHATS, {"continue_final_message": True}
    yield [CHATS[0][:2]], {"continue_final_message": True}
    yield [[*CHATS[0], ("user", "g")]], {"continue_final_message": True}
    yield CHATS, {"truncation": True, "max_length": 25}
    yield CHATS, {"add_generation_prompt": True, "padding": True, "padding_side": "left"}


def chat(turns: Sequence[Turns], options: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return tokens of conversations in ChatML, with masks of what the assistant says."""
    names = ("input_ids", "assistant_masks", "attention_mask")
    rows = []
    for one in turns:
        tokens: list[str] = []
        mine: list[int] = []
        for role, content in one:
            said = [*content, "<|im_end|>"]
            tokens += ["<|im_start|>", *role, "\n", *said]
            mine += [0] * (len(role) + 2) + [int(role == "assistant")] * len(said)
        if options.get("continue_final_message"):
            tokens, mine = tokens[:-1], mine[:-1]
        if options.get("add_generation_prompt"):
            tokens += ["<|im_start|>", *"assistant", "\n"]
            mine += [0] * 11
        limit = options.get("max_length")
        rows.append((tokens[:limit], mine[:limit]))
    width = _width([len(tokens) for tokens, _ in rows], options, None) or 0
    found: dict[str, list[Any]] = {}
    for tokens, mine in rows:
        gap, left = max(0, width - len(tokens)), options.get("padding_side") == "left"
        values: tuple[list[Any], ...] = (tokens, mine, [1] * len(tokens))
        for name, value, fill in zip(names, values, (PADDING, 0, 0), strict=True):
            found.setdefault(name, []).append([fill] * gap + value if left else value + [fill] * gap)
    if options.get("continue_final_message"):
        del found["assistant_masks"]  # which Transformers does not give then
    return found


MERGES = (("a", "b"), ("c", "d"), ("ab", "cd"), ("b", "c"), ("e", "e"), ("ee", "e"), ("a", "ee"))
WORDS = ("abcd", "abc", "bcd", "eeee", "aeee", "aabbccdd", "cdabcdab", "x", "eaeebc")


def byte_pairs(merges: Sequence[tuple[str, str]], word: str) -> list[str]:
    """Return the parts of a word after merges: that of the lowest rank is made everywhere first."""
    parts, ranks = list(word), {pair: rank for rank, pair in enumerate(merges)}
    while len(parts) > 1:
        best = min(pairwise(parts), key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        place = 0
        while place < len(parts) - 1:
            if (parts[place], parts[place + 1]) == best:
                parts[place : place + 2] = ["".join(best)]
            place += 1
    return parts


def _words(case: Numbers) -> Iterable[Arguments]:
    return [(MERGES, word) for word in WORDS]


ENCODING_FUNCTIONS: Sequence[Plain] = (
    Plain(
        name="encoded",
        law="texts and pairs",
        suspects="an option of an earlier call that stays, the other side, a part of a long text that is lost",
        cases=_encoded_cases,
        right=encoded,
    ),
    Plain(
        name="padded encodings",
        law="padding of encodings",
        suspects="a mask that is made again, a value of padding of another column",
        cases=_padded_cases,
        right=padded,
    ),
    Plain(
        name="chat",
        law="conversations",
        suspects="masks that padding or truncation does not move, an end token left after a message to continue",
        cases=_chat_cases,
        right=chat,
    ),
    Plain(
        name="byte pairs",
        law="byte pairs",
        suspects="merges in another order, the first one left out",
        cases=_words,
        right=byte_pairs,
    ),
)
add_laws(ENCODINGS, ENCODING_FUNCTIONS)
