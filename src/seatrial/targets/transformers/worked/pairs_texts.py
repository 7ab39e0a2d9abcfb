"""Worked examples of calls of tokenizers with every pair of options, against loops over the plain ids of each text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from seatrial.relations.cases.pairwise import names_of, pairwise
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, between
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.pairs_kinds import KINDS, Frame, Kind, as_lists, copied
from seatrial.targets.transformers.worked.weights import LATER

OPTIONS: Mapping[str, Sequence[str]] = {
    "kind": tuple(KINDS),
    "form": ("a text", "a pair", "texts", "pairs", "pairs as tuples", "one in a list", "one pair in a list"),
    "words": ("", "in words", "in two words"),
    "padding": ("", "padded", "to the longest", "to a length"),
    "side": ("", "pads left", "pads left by the call", "pads right by the call"),
    "multiple": ("", "multiple of four"),
    "truncation": ("", "cut", "longest first", "only first", "only second", "not cut"),
    "cut side": ("", "cuts left", "cuts left, set later"),
    "length": ("short", "long", "none"),
    "overflow": ("", "overflow", "overflow with a stride", "overflow with a larger stride"),
    "special": ("", "no special tokens"),
    "fields": ("", "all fields", "ids alone"),
    "tensors": ("", "np", "pt"),
    "target": ("", "a target", "a target alone"),
    "copy": ("", "saved and read", "copied"),
}
"""Values of each option, in words."""
FORMS = ("form", "words", "special")
"""Options that say which rows a call is given, and how they are framed."""
FIRST = ("ab cd ab e. dc ba a", "b", "c.d ab abe")
SECOND = ("e d ab", "a.b cc de ab", "d")
FIRST_WORDS = (("ab", "cd", "ab", "e.", "dc", "ba", "a"), ("b",), ("c.d", "ab", "abe"))
SECOND_WORDS = (("e", "d", "ab"), ("a.b", "cc", "de", "ab"), ("d",))
FIRST_TWO, SECOND_TWO = (
    (("abcdab", "e."), ("b", "ab"), ("c", "dabe")),
    (("ed", "ab"), ("a.bcc", "deab"), ("d",)),
)
"""Rows of two words, which look like pairs."""
TRUNCATIONS = {"": False, "cut": True, "not cut": "do_not_truncate"}
PADDINGS = {"": False, "padded": True, "to the longest": "longest", "to a length": "max_length"}


class Token(NamedTuple):
    """A token of a row, with what is said of it."""

    token: int
    type: int = 0
    special: int = 1
    seen: int = 1
    offsets: tuple[int, int] = (0, 0)
    text: int | None = None
    word: int | None = None


def _fitted(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return a choice whose options fit one another: those that do not are left out."""
    found = dict(chosen)
    pair, many = "pair" in chosen["form"], chosen["form"] in ("texts", "pairs", "pairs as tuples")
    python = "Python" in chosen["kind"]
    if found["truncation"] == "only second" and not pair:
        found["truncation"] = "only first"
    cuts = found["truncation"] not in ("", "not cut")
    if found["length"] == "none" and (cuts or found["padding"] == "to a length"):
        found["length"] = "short"
    if found["words"] and pair and found["form"] == "pairs as tuples":
        found["form"] = "pairs"
    # Windows of a pair whose texts are both cut depend on the implementation.
    both = pair and found["truncation"] in ("cut", "longest first")
    if not cuts or both or found["target"]:
        found["overflow"] = ""
    ragged = many and (not found["padding"] or (found["padding"] == "to a length" and not cuts))
    if found["tensors"] and (found["overflow"] or ragged):
        found["tensors"] = ""
    # A row in Python has what overflows only where it is cut, so that batches have less than a field for each row.
    if python and (pair or many):
        found["overflow"] = ""
    if found["fields"] == "ids alone" and found["padding"] and found["side"]:
        found["fields"] = "all fields"
    return found


def cases() -> Iterator[dict[str, str]]:
    """Yield choices that together have nearly every pair of values of two options, and all of FORMS, of each kind."""
    seen = set()
    sizes = {name: len(values) for name, values in OPTIONS.items() if name != "kind"}
    plain = {**dict.fromkeys(sizes, 0), "fields": OPTIONS["fields"].index("all fields")}
    forms = [
        {**plain, **dict(zip(FORMS, values, strict=True))}
        for values in product(*(range(sizes[name]) for name in FORMS))
    ]
    for row, kind in product([*pairwise(sizes, lambda row: True), *forms], KINDS):
        chosen = _fitted({"kind": kind, **{name: OPTIONS[name][index] for name, index in row.items()}})
        if (key := (*chosen.values(),)) not in seen:
            seen.add(key)
            yield chosen


def _plain(tokenizer: Any, given: Any, text: int) -> list[Token]:
    """Return the tokens of a text, or of words one by one, without anything around them."""
    found = []
    for number, one in enumerate([given] if isinstance(given, str) else given):
        said = tokenizer(one, add_special_tokens=False, return_offsets_mapping=tokenizer.is_fast)
        words = said.word_ids() if tokenizer.is_fast and isinstance(given, str) else None
        for at, token in enumerate(said["input_ids"]):
            found.append(
                Token(
                    token, special=0, text=text, offsets=said["offset_mapping"][at] if tokenizer.is_fast else (0, 0),
                    word=number if words is None else words[at],
                )
            )  # fmt: skip
    return found


def _kept(sizes: tuple[int, int], limit: int, python: bool) -> tuple[int, int]:
    """Return how many tokens both texts keep where the longer one loses one at a time."""
    one, other = sizes
    # Of two that are equally long, Python cuts the second one, and Rust the one that was shorter before.
    first_goes_on = python or sizes[0] > sizes[1]
    while one + other > limit:
        if one > other or (one == other and not first_goes_on):
            one -= 1
        else:
            other -= 1
    return one, other


def _windows(tokens: Sequence[Token], limit: int, stride: int, left: bool) -> list[list[Token]]:
    """Return the parts of a text; each begins within the last one by the stride, from the end where the left is cut."""
    if len(tokens) <= limit:
        return [list(tokens)]
    parts, step = [], limit - stride
    if left:
        stop = len(tokens)
        while True:
            parts.append(list(tokens[max(0, stop - limit) : stop]))
            if stop - limit <= 0:
                return parts
            stop -= step
    start = 0
    while True:
        parts.append(list(tokens[start : start + limit]))
        if start + limit >= len(tokens):
            return parts
        start += step


def _framed(
    frame: Frame, first: Sequence[Token], second: Sequence[Token], ids: Mapping[str, int]
) -> list[Token]:
    found: list[Token] = []
    for name, kind in frame:
        own = {"A": first, "B": second}.get(name)
        found += [Token(ids[name], type=kind)] if own is None else [one._replace(type=kind) for one in own]
    return found


class Call(NamedTuple):
    """A call, by numbers."""

    kind: Kind
    python: bool
    frame: Frame
    truncation: str
    left: bool
    length: int | None
    stride: int
    overflow: bool


def _rows(
    call: Call, first: Sequence[Token], second: Sequence[Token], ids: Mapping[str, int]
) -> list[list[Token]]:
    """Return a row, and what overflows of it in rows of their own."""
    if call.truncation in ("", "not cut") or call.length is None:
        return [_framed(call.frame, first, second, ids)]
    capacity = call.length - sum(name not in ("A", "B") for name, _ in call.frame)
    pair = any(name == "B" for name, _ in call.frame)
    if pair and call.truncation in ("cut", "longest first"):
        sizes = _kept((len(first), len(second)), capacity, call.python)
        cut = [
            (tokens[len(tokens) - size :] if call.left else tokens[:size])
            for tokens, size in zip((first, second), sizes, strict=True)
        ]
        return [_framed(call.frame, cut[0], cut[1], ids)]
    if call.truncation == "only second":
        parts = _windows(second, capacity - len(first), call.stride, call.left)
        found = [_framed(call.frame, first, one, ids) for one in parts]
    else:
        parts = _windows(first, capacity - len(second), call.stride, call.left)
        found = [_framed(call.frame, one, second, ids) for one in parts]
    return found if call.overflow else found[:1]


def _length(
    chosen: Mapping[str, str], special: int, firsts: Sequence[int], seconds: Sequence[int]
) -> int | None:
    """Return a length that cuts some row, or none, and is a multiple of four."""
    if chosen["length"] == "none":
        return None
    needed = {
        "only first": max(seconds) + 4,
        "only second": max(firsts) + 4,
    }.get(chosen["truncation"], (max(firsts) + max(seconds)) // 2 + 1)
    if chosen["length"] == "long":
        needed = max(firsts) + max(seconds) + 2
    return -(-(special + needed) // 4) * 4


def _inputs(chosen: Mapping[str, str]) -> tuple[list[Any], list[Any] | None, tuple[Any, ...]]:
    """Return the texts, the second ones, and the arguments of the call."""
    pair = "pair" in chosen["form"]
    two = "two" in chosen["words"]
    firsts, seconds = (FIRST_TWO, SECOND_TWO) if two else (FIRST_WORDS, SECOND_WORDS)
    first: list[Any] = [list(one) for one in firsts] if chosen["words"] else list(FIRST)
    second: list[Any] = [list(one) for one in seconds] if chosen["words"] else list(SECOND)
    if chosen["form"] in ("a text", "a pair"):
        return first[:1], second[:1] if pair else None, (first[0], second[0])[: 1 + pair]
    if chosen["form"].startswith("one"):
        first, second = first[:1], second[:1]
    if chosen["form"] == "pairs as tuples":
        return first, second, (list(zip(first, second, strict=True)),)
    return first, second if pair else None, (first, second)[: 1 + pair]


def _called(chosen: Mapping[str, str], base: Any) -> list[str]:
    """Return what a call gives that is not due: ids, masks, types, places, windows, padding, and labels."""
    kind, python = KINDS[chosen["kind"]], "Python" in chosen["kind"]
    fresh = kind.make()
    options: dict[str, Any] = {"padding_side": "left" if chosen["side"] == "pads left" else "right"}
    if chosen["cut side"] == "cuts left":
        options["truncation_side"] = "left"
    tokenizer = copied(kind.make(**options), chosen["copy"])
    if "later" in chosen["cut side"]:
        tokenizer.truncation_side = "left"
    firsts, seconds, given = _inputs(chosen)
    frame = kind.frame(seconds is not None, not chosen["special"])
    ids = {name: fresh.convert_tokens_to_ids(name) for name, _ in frame if name not in ("A", "B")}
    pairs = [
        (_plain(fresh, one, 0), [] if seconds is None else _plain(fresh, seconds[at], 1))
        for at, one in enumerate(firsts)
    ]
    sizes = [len(one) for one, _ in pairs], [len(other) for _, other in pairs]
    length = _length(chosen, len(ids and [one for one in frame if one[0] in ids]), *sizes)
    stride = {"overflow with a stride": 1, "overflow with a larger stride": 3}.get(chosen["overflow"], 0)
    call = Call(
        kind, python, frame, chosen["truncation"], "left" in chosen["cut side"], length, stride,
        bool(chosen["overflow"]) and not python,
    )  # fmt: skip
    rows: list[list[Token]] = []
    samples: list[int] = []
    for at, (first, second) in enumerate(pairs):
        own = _rows(call, first, second, ids)
        rows += own
        samples += [at] * len(own)
    asked: dict[str, Any] = {
        "padding": PADDINGS[chosen["padding"]], "add_special_tokens": not chosen["special"],
        "truncation": TRUNCATIONS.get(chosen["truncation"], chosen["truncation"].replace(" ", "_")),
        "max_length": length, "stride": stride, "return_overflowing_tokens": bool(chosen["overflow"]),
        "is_split_into_words": bool(chosen["words"]), "return_tensors": chosen["tensors"] or None,
        "pad_to_multiple_of": 4 if chosen["multiple"] else None,
    }  # fmt: skip
    if "by the call" in chosen["side"]:
        asked["padding_side"] = chosen["side"].split()[1]
    if chosen["fields"] == "all fields":
        asked |= {
            "return_token_type_ids": True,
            "return_special_tokens_mask": True,
            "return_attention_mask": True,
        }
        asked |= {} if python else {"return_offsets_mapping": True, "return_length": True}
    if chosen["fields"] == "ids alone":
        asked |= {"return_token_type_ids": False, "return_attention_mask": False}
    found = _found(tokenizer, chosen, given, asked)
    rows = _padded(
        rows, chosen, length, asked.get("padding_side", options["padding_side"]), fresh.pad_token_id
    )
    flat = chosen["form"] in ("a text", "a pair") and not call.overflow and not chosen["tensors"]
    wrong = _unlike(chosen, found, rows, flat, python)
    if chosen["target"] == "a target" and as_lists(found["labels"]) != _ids(rows, flat):
        wrong.append(f"labels: {as_lists(found['labels'])}, {_ids(rows, flat)} are due")
    if call.overflow and list(found["overflow_to_sample_mapping"]) != samples:
        wrong.append(f"rows of windows: {found['overflow_to_sample_mapping']}, {samples} are due")
    if chosen["overflow"] and python and length is not None and len(firsts) == 1:
        wrong += _of_python(found, [one.token for one in pairs[0][0]], length - len(frame) + 1, call, flat)
    plain, due = tokenizer(FIRST[0])["input_ids"], fresh(FIRST[0])["input_ids"]
    wrong += [] if plain == due else [f"a plain call afterwards: {plain}, {due} is due"]
    return wrong[:3]


def _found(tokenizer: Any, chosen: Mapping[str, str], given: Sequence[Any], asked: Mapping[str, Any]) -> Any:
    """Return what a call gives, with texts, targets or both."""
    target = dict(zip(("text_target", "text_pair_target"), given, strict=False)) if chosen["target"] else {}
    try:
        return tokenizer(*(() if "alone" in chosen["target"] else given), **asked, **target)
    except ValueError as error:
        if "undefined behavior" not in str(error):
            raise
        raise NotServed("types without special tokens are refused") from error


def _ids(rows: Sequence[Sequence[Token]], flat: bool) -> Any:
    found = [[one.token for one in row] for row in rows]
    return found[0] if flat else found


def _padded(
    rows: Sequence[list[Token]], chosen: Mapping[str, str], length: int | None, side: str, pad: int
) -> list[list[Token]]:
    """Return rows with padding on a side."""
    if not chosen["padding"]:
        return list(rows)
    width = length if chosen["padding"] == "to a length" and length is not None else max(map(len, rows))
    width = -(-width // 4) * 4 if chosen["multiple"] else width
    gaps = [[Token(pad, seen=0)] * (width - len(row)) for row in rows]
    return [gap + row if side == "left" else row + gap for gap, row in zip(gaps, rows, strict=True)]


def _unlike(
    chosen: Mapping[str, str], found: Any, rows: Sequence[Sequence[Token]], flat: bool, python: bool
) -> list[str]:
    """Return fields that are not those of the rows."""
    due: dict[str, list[list[Any]]] = {"input_ids": [[one.token for one in row] for row in rows]}
    if chosen["fields"] == "all fields":
        due["token_type_ids"] = [[one.type for one in row] for row in rows]
        due["special_tokens_mask"] = [[one.special for one in row] for row in rows]
        if not python:
            due["offset_mapping"] = [[one.offsets for one in row] for row in rows]
    if chosen["fields"] != "ids alone":
        due["attention_mask"] = [[one.seen for one in row] for row in rows]
    wrong = []
    for name, right in due.items():
        value = as_lists(found[name])
        shown = right[0] if flat else right
        if name == "offset_mapping":
            value = [tuple(one) for one in value] if flat else [[tuple(one) for one in row] for row in value]
        if value != shown:
            wrong.append(f"{name}: {value}, {shown} is due")
    if (
        chosen["tensors"]
        and type(found["input_ids"]).__module__.split(".")[0]
        != {"np": "numpy", "pt": "torch"}[chosen["tensors"]]
    ):
        wrong.append(f"it gives {type(found['input_ids'])}")
    if chosen["fields"] == "ids alone" and {"attention_mask", "token_type_ids"} & {*found}:
        wrong.append(f"it gives {sorted(found)}")
    if not python:
        for at, row in enumerate(rows):
            texts, words = [one.text for one in row], [one.word for one in row]
            if found.sequence_ids(at) != texts or found.word_ids(at) != words:
                wrong.append(
                    f"row {at}: texts {found.sequence_ids(at)}, words {found.word_ids(at)}, {words} are due"
                )
        if chosen["fields"] == "all fields" and [*as_lists(found["length"])] != [len(row) for row in rows]:
            wrong.append(f"lengths: {found['length']}")
    return wrong


def _of_python(found: Any, ids: Sequence[int], capacity: int, call: Call, flat: bool) -> list[str]:
    """Return where the rest of a text, with the stride before it, is not what is due of a tokenizer in Python."""
    gone = max(0, len(ids) - capacity)
    due = (
        ([*ids[: gone + call.stride]] if call.left else [*ids[len(ids) - gone - call.stride :]])
        if gone
        else []
    )
    rest = as_lists(found["overflowing_tokens"])
    rest = rest if flat else rest[0]
    return [] if rest == due else [f"the rest: {rest}, {due} is due"]


TAKEN_FOR_PAIRS = KnownFailure(
    "a row of two words in a batch is taken for a pair",
    finding=LATER,
    releases=between("transformers", "5", "5.16"),
)


def _table() -> Iterator[Row]:
    for chosen in cases():
        index = {name: OPTIONS[name].index(value) for name, value in chosen.items()}
        name = f"called: {chosen['kind']}, {names_of({**index, 'kind': 0}, OPTIONS)}"
        pairs = "Python" in chosen["kind"] and chosen["words"] == "in two words"
        yield Row(
            "texts", "transformers:PreTrainedTokenizerBase", name, partial(_called, chosen), [], since="4.57",
            known=TAKEN_FOR_PAIRS if pairs and chosen["form"] in ("texts", "one in a list") else None,
        )  # fmt: skip


# Sources: the documentation of PreTrainedTokenizerBase.__call__, and the page on padding and truncation.
PAIRED_TEXT_ROWS: Sequence[Row] = tuple(_table())
