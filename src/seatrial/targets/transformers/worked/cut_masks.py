"""Worked examples of masks of the assistant: one conversation and several, cut on a side or not, padded on a side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.marked import (
    TEMPLATE,
    Turns,
    asked,
    due_tokens,
    media_processor,
    messages_of,
    padded,
    processor_class,
    rows_of_tokens,
    shown,
)

CHATS: Sequence[Turns] = (
    (("user", ["ab"]), ("assistant", ["cdefg"])),
    (("user", ["h"]), ("assistant", ["ij"]), ("user", ["klmn"]), ("assistant", ["opq"])),
    (("assistant", ["rs"]), ("user", ["tu"]), ("assistant", ["v"]), ("user", ["w"])),
    (("user", ["abcdefghijkl"]), ("assistant", ["m"])),
    (("user", ["ab"]),),
)
"""Conversations of unequal lengths: with an answer at the end, within and at the start, and with none."""
MEDIA: Sequence[Turns] = (
    (("user", [("image", 3)]), ("assistant", ["cdefg"]), ("user", ["h"]), ("assistant", ["ij"])),
    (("user", [("image", 2)]), ("assistant", ["k"]), ("user", ["lmnop"]), ("assistant", ["qr"])),
)
SIZES: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 40)
"""Numbers of tokens to which rows are cut."""
PADDINGS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "not padded": ({},),
    **{
        f"padded on the {side}": (
            {"padding": True, "padding_side": side},
            {"padding": True, "padding_side": side, "return_tensors": "pt"},
            {"padding": "max_length", "max_length": 45, "padding_side": side, "return_tensors": "np"},
        )
        for side in ("left", "right")
    },
}
CUTS = ("the right", "the left", "no side")


def _by_tokenizer(tokenizer: Any, chats: Any, form: Mapping[str, Any]) -> list[list[tuple[str, int]]]:
    """Return the tokens and the mask that a tokenizer gives."""
    options = dict(form)
    tokenizer.chat_template = TEMPLATE
    tokenizer.truncation_side = options.pop("truncation_side", "right")
    tokenizer.padding_side = options.pop("padding_side", "right")
    found = tokenizer.apply_chat_template(
        copy.deepcopy(chats), tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **options
    )
    fields = {name: found[name] for name in ("input_ids", "assistant_masks")}
    flat = not hasattr(fields["input_ids"][0], "__len__")
    return rows_of_tokens({name: [one] for name, one in fields.items()} if flat else fields, tokenizer)


def _text_processor() -> Any:
    """Return a processor of texts alone, which releases before 5.18 take too."""

    class Processor(processor_class()):  # type: ignore[misc]
        """A processor."""

        def __call__(self, text: Any = None, **given: Any) -> Any:
            """Return the fields of texts."""
            texts = [text] if isinstance(text, str) else text
            media = ("images", "videos", "audio")
            return self.tokenizer(texts, **{name: one for name, one in given.items() if name not in media})

    return Processor(tiny_tokenizer(), chat_template=TEMPLATE)


KINDS: Mapping[str, tuple[Callable[[], Any], Callable[..., Any], Sequence[Turns]]] = {
    "a tokenizer": (tiny_tokenizer, _by_tokenizer, CHATS),
    "a processor of texts": (_text_processor, asked, CHATS),
    "a processor of pictures": (media_processor, asked, MEDIA),
}


def _batches(kind: str, several: bool) -> Sequence[Sequence[Turns]]:
    chats = KINDS[kind][2]
    if not several:
        return [[chat] for chat in chats]
    return [chats, chats[::-1], chats[:2], [chats[0]] * 2, [chats[1]] * 3]


def _keeps(cut: str, size: int) -> bool:
    """Return whether no picture, which is at the start, is lost."""
    return size >= (5 if cut == "the right" else 40)


def _wrong(kind: str, several: bool, cut: str, padding: str, function: Any) -> list[str]:
    """Return the rows whose tokens or mask are not those of the whole conversation, cut and then padded."""
    make, ask, _ = KINDS[kind]
    of, wrong = make(), []
    sizes = [size for size in SIZES if kind != "a processor of pictures" or _keeps(cut, size)]
    for chats, size, form in product(_batches(kind, several), sizes, PADDINGS[padding]):
        options = dict(form)
        if cut != "no side":
            side = cut.removeprefix("the ")
            options |= {"truncation": True, "truncation_side": side, "max_length": size}
        wholes = [due_tokens(chat, False) for chat in chats]
        kept = {
            "the right": [one[:size] for one in wholes],
            "the left": [one[-size:] for one in wholes],
            "no side": wholes,
        }[cut]
        width = (
            size if form.get("padding") == "max_length" and cut != "no side" else form.get("max_length", 0)
        )
        due = padded(kept, {**form, "max_length": width})
        given = [messages_of(chat) for chat in chats]
        for one in [given] if several else [given, given[0]]:
            found = ask(of, one, options)
            wrong += [
                f"{cut} {size}, {dict(form)}: {shown(row)}, {shown(right)} is due"
                for row, right in zip(found, due, strict=True)
                if row != right
            ]
    return wrong[:5]


def _since(kind: str, cut: str, padding: str) -> str:
    """Return the first release whose masks are due: earlier ones look for the token of an answer's first letter."""
    if kind == "a tokenizer":
        return "5.23.1" if cut == "the left" else "4.57"
    whole = cut == "no side" and padding != "padded on the right"
    return "4.57" if kind == "a processor of texts" and whole else "5.24"


def _row(kind: str, several: bool, cut: str, padding: str) -> Row:
    place = "PreTrainedTokenizerBase" if kind == "a tokenizer" else "ProcessorMixin"
    what = f"{'several' if several else 'one'}, cut on {cut}, {padding}"
    call = partial(_wrong, kind, several, cut, padding)
    since = _since(kind, cut, padding)
    return Row("chats", f"transformers:{place}", f"masks of {kind}: {what}", call, [], since=since)


# Sources: the documentation of apply_chat_template (return_assistant_tokens_mask, truncation, max_length, padding).
CUT_MASK_ROWS: Sequence[Row] = [_row(*one) for one in product(KINDS, (False, True), CUTS, PADDINGS)]
