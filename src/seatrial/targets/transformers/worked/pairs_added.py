"""Worked examples of added tokens with every pair of flags, ways and copies: what texts become, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from seatrial.relations.cases.pairwise import names_of, pairwise
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.pairs_kinds import KINDS, copied

OPTIONS: Mapping[str, Sequence[str]] = {
    "kind": ("letters", "letters in Python"),
    "way": ("added", "added as special", "named", "added twice", "added in a list"),
    "form": ("a token", "a string"),
    "left": ("", "takes blanks on the left"),
    "right": ("", "takes blanks on the right"),
    "single": ("", "alone"),
    "copy": ("", "saved and read", "copied"),
    "shown": ("", "without special tokens"),
    "cleaned": ("", "cleaned up"),
    "ids": ("a list", "numpy", "torch", "a batch", "a batch in torch"),
    "split": ("", "special tokens split"),
}
"""Values of each option, in words."""
NEW, OTHER = "<x>", "<yy>"
TEXTS = (
    "ab <x> cd",
    "a<x>b",
    "<x>",
    " <x>",
    "<x> ",
    "<x><x>",
    "ab  <x>  .",
    "c .<x>a <yy> b",
    "e <x",
    "a <x><yy>e .",
)


def _fitted(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return a choice whose options fit one another: those that do not are left out."""
    found = dict(chosen)
    if found["form"] == "a string":
        found |= dict.fromkeys(("left", "right", "single"), "")
    if found["form"] == "a token" and found["way"] == "added twice":
        found["way"] = "added in a list"  # other flags replace those that are there
    # In Python no added token at all is kept, and blanks part words; byte pairs are not cleaned up.
    unfit = ("single", "split") if found["kind"] == "letters in Python" else ("cleaned",)
    found |= dict.fromkeys(unfit, "")
    return found


def cases() -> Iterator[dict[str, str]]:
    """Yield choices that together have nearly every pair of values of two options, of each kind."""
    seen = set()
    sizes = {name: len(values) for name, values in OPTIONS.items() if name != "kind"}
    for row in pairwise(sizes, lambda row: True):
        for kind in OPTIONS["kind"]:
            own = {name: OPTIONS[name][index] for name, index in row.items()}
            chosen = _fitted({"kind": kind, **own})
            if (key := (*chosen.values(),)) not in seen:
                seen.add(key)
                yield chosen


def _fresh(kind: str) -> Any:
    return tiny_tokenizer() if kind == "letters" else KINDS[kind].make()


def _with_tokens(chosen: Mapping[str, str]) -> Any:
    """Return a tokenizer with two added tokens, of which the first has the flags."""
    from tokenizers import AddedToken

    tokenizer, special = _fresh(chosen["kind"]), chosen["way"] in ("added as special", "named")
    flags = {
        "lstrip": bool(chosen["left"]),
        "rstrip": bool(chosen["right"]),
        "single_word": bool(chosen["single"]),
    }
    new: Any = AddedToken(NEW, special=special, normalized=False, **flags)
    new = NEW if chosen["form"] == "a string" else new
    if chosen["way"] == "named":
        tokenizer.add_special_tokens({"mask_token": new})
        tokenizer.add_tokens(OTHER)
    elif chosen["way"] == "added in a list":
        tokenizer.add_tokens([new, OTHER])
    else:
        tokenizer.add_tokens(new, special_tokens=special)
        tokenizer.add_tokens([OTHER])
        if chosen["way"] == "added twice" and tokenizer.add_tokens([NEW, OTHER]) != 0:
            raise AssertionError("tokens that are there are added again")
    return copied(tokenizer, chosen["copy"])


def _pieces(chosen: Mapping[str, str], text: str) -> list[str]:
    """Return the letters and added tokens of a text."""
    special = chosen["way"] in ("added as special", "named")
    splits = special and bool(chosen["split"])
    found: list[str] = []
    at = 0
    while at < len(text):
        new = text.startswith(NEW, at) and not splits
        alone = not chosen["single"] or (
            not text[max(0, at - 1) : at].isalnum() and not text[at + len(NEW) :][:1].isalnum()
        )
        if new and alone:
            while chosen["left"] and found and found[-1] == " ":
                found.pop()
            found.append(NEW)
            at += len(NEW)
            while chosen["right"] and text[at : at + 1] == " ":
                at += 1
        elif text.startswith(OTHER, at):
            found.append(OTHER)
            at += len(OTHER)
        else:
            found.append(text[at])
            at += 1
    return found


def _numbers(fresh: Any, pieces: Sequence[str]) -> list[int]:
    """Return the ids of letters, and those of added tokens, which come after all others."""
    own = {NEW: len(fresh), OTHER: len(fresh) + 1}
    found: list[int] = []
    for piece in pieces:
        found += [own[piece]] if piece in own else fresh(piece, add_special_tokens=False)["input_ids"]
    return found


def _added(chosen: Mapping[str, str], base: Any) -> list[str]:
    """Return which ids, texts, numbers and names of a tokenizer with added tokens are not due."""
    tokenizer, fresh, wrong = _with_tokens(chosen), _fresh(chosen["kind"]), []
    special, python = chosen["way"] in ("added as special", "named"), "Python" in chosen["kind"]
    options: dict[str, Any] = {"split_special_tokens": True} if chosen["split"] else {}
    rows = []
    for text in TEXTS:
        pieces = _pieces(chosen, text)
        due = _numbers(fresh, pieces)
        found = tokenizer(text, add_special_tokens=False, **options)["input_ids"]
        wrong += [] if found == due else [f"{text!r}: {found}, {due} is due"]
        rows.append((due, pieces))
    unknown = "[UNK]" if python else ""
    texts = []
    for _, pieces in rows:
        kept = [one for one in pieces if not (chosen["shown"] and special and one == NEW)]
        kept = [
            unknown if unknown and one not in (NEW, OTHER) and one not in "abcde ." else one for one in kept
        ]
        text = "".join("" if chosen["shown"] and one == unknown else one for one in kept)
        texts.append(text.replace(" .", ".") if chosen["cleaned"] else text)
    given = {
        "skip_special_tokens": bool(chosen["shown"]),
        "clean_up_tokenization_spaces": bool(chosen["cleaned"]),
    }
    given |= {"spaces_between_special_tokens": False} if python else {}
    made: Any = {"numpy": np.array, "torch": torch.tensor, "a batch in torch": torch.tensor}.get(
        chosen["ids"], list
    )
    if chosen["ids"].startswith("a batch"):
        shown = tokenizer.batch_decode([made(ids) for ids, _ in rows], **given)
    else:
        shown = [tokenizer.decode(made(ids), **given) for ids, _ in rows]
    wrong += [f"shown: {one!r}, {due!r} is due" for one, due in zip(shown, texts, strict=True) if one != due]
    return wrong[:3] + _said(tokenizer, fresh, special, chosen)[:2]


def _said(tokenizer: Any, fresh: Any, special: bool, chosen: Mapping[str, str]) -> list[str]:
    """Return what a tokenizer says of itself that is not due."""
    size = len(fresh)
    named = chosen["way"] == "named" or (special and "Python" in chosen["kind"])
    due = {
        "length": (len(tokenizer), size + 2),
        "size": (tokenizer.vocab_size, fresh.vocab_size),
        "ids": (tokenizer.convert_tokens_to_ids([NEW, OTHER]), [size, size + 1]),
        "tokens": (tokenizer.convert_ids_to_tokens([size, size + 1]), [NEW, OTHER]),
        "vocabulary": (tokenizer.get_vocab().get(OTHER), size + 1),
        "added": ({name: tokenizer.get_added_vocab().get(name) for name in (NEW, OTHER)}, {NEW: size, OTHER: size + 1}),
        "special": ([one in tokenizer.all_special_tokens for one in (NEW, OTHER)], [named, False]),
        "flags": (
            [getattr(tokenizer.added_tokens_decoder[size], name) for name in ("lstrip", "rstrip", "special")],
            [bool(chosen["left"]), bool(chosen["right"]), special],
        ),
        "mask": (tokenizer.mask_token, NEW if chosen["way"] == "named" else None),
        "skipped": (
            tokenizer.convert_ids_to_tokens([size, size + 1], skip_special_tokens=True),
            [OTHER] if named else [NEW, OTHER],
        ),
    }  # fmt: skip
    return [f"{name}: {found}, {right} is due" for name, (found, right) in due.items() if found != right]


def _table() -> Iterator[Row]:
    for chosen in cases():
        index = {name: OPTIONS[name].index(value) for name, value in chosen.items()}
        name = f"added tokens: {chosen['kind']}, {names_of({**index, 'kind': 0}, OPTIONS)}"
        yield Row(
            "texts", "transformers:PreTrainedTokenizerBase", name, partial(_added, chosen), [], since="4.57"
        )


# Sources: the documentation of AddedToken, add_tokens, add_special_tokens and decode.
PAIRED_ADDED_ROWS: Sequence[Row] = tuple(_table())
