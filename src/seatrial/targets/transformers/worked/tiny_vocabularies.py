"""Tiny vocabularies for tokenizer classes of Transformers: byte pairs, pieces with scores, word pieces, and files."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.trainers import new_folder

LETTERS = "abcdefghilmnopqrstwxyz"
SIGNS = "H0123.,!'?"
"""Without k, capital letters but one, and 日: unknown, or bytes."""
BLANK, BYTES_BLANK = "▁", "Ġ"
PAIRS: Sequence[tuple[str, str]] = (
    ("h", "e"), ("l", "l"), ("he", "ll"), ("_", "w"), ("_w", "o"), ("r", "l"), ("_wo", "rl"), ("_", "t"), ("o", "_"),
    ("1", "2"), ("n", "'"), ("a", "b"), ("ab", "c"),
)  # fmt: skip
"""Merges in their order; `_` is the blank of the kind."""
END_PAIRS: Sequence[tuple[str, str]] = (
    ("l", "o</w>"),
    ("h", "e"),
    ("l", "d</w>"),
    ("he", "l"),
    ("hel", "lo</w>"),
)
"""Of vocabularies that mark the ends of words."""
WORDS = ("hello", "wor", "##ld", "don", "##'", "12", "abc", "spaces", "##s", "two", "日")
PIECES: Sequence[tuple[str, float]] = (
    (BLANK, -2.0), ("he", -4.5), (f"{BLANK}he", -5.0), ("llo", -4.0), (f"{BLANK}wor", -5.5), ("ld", -4.5),
    (f"{BLANK}t", -4.0), ("12", -5.0), ("abc", -4.0), ("ab", -3.5), ("n'", -5.0),
)  # fmt: skip


Specials = Mapping[str, str]
"""Special tokens by the parameters of a constructor."""


ORDER = {
    f"{name}_token": place for place, name in enumerate(("cls", "bos", "pad", "sep", "eos", "unk", "mask"))
}
"""The places of special tokens at the beginning of a vocabulary, which RoBERTa and its kin take for granted."""


def specials_of(made: Any, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens of a class: its defaults, or the options."""
    for one in made.__mro__:
        if "__init__" in vars(one):
            parameters = inspect.signature(one.__init__).parameters
            named = {name: options.get(name, parameter.default) for name, parameter in parameters.items()}
            found = {
                name: token
                for name, token in named.items()
                if name.endswith("_token") and isinstance(token, str)
            }
            if found:
                return dict(sorted(found.items(), key=lambda pair: ORDER.get(pair[0], len(ORDER))))
    return {}


def _bytes() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: place for place, token in enumerate(dict.fromkeys(tokens))}


def _pairs(blank: str) -> list[tuple[str, str]]:
    return [(one.replace("_", blank), other.replace("_", blank)) for one, other in PAIRS]


def byte_level(specials: Specials) -> dict[str, Any]:
    """Return byte pairs of bytes."""
    merges = _pairs(BYTES_BLANK)
    return {
        "vocab": _numbered([*specials.values(), *_bytes(), *("".join(pair) for pair in merges)]),
        "merges": merges,
    }


def metaspace(specials: Specials) -> dict[str, Any]:
    """Return byte pairs of letters, with bytes for what is not there."""
    merges = _pairs(BLANK)
    raw = [f"<0x{one:02X}>" for one in range(256)]
    parts = ["".join(pair) for pair in merges]
    return {
        "vocab": _numbered([*specials.values(), *raw, BLANK, *LETTERS, *SIGNS, "\n", BLANK * 2, *parts]),
        "merges": [*merges, (BLANK, BLANK)],
    }


def word_ends(specials: Specials) -> dict[str, Any]:
    """Return byte pairs that mark the ends of words."""
    letters = [*LETTERS, *SIGNS]
    parts = ["".join(pair) for pair in END_PAIRS]
    ends = [f"{one}</w>" for one in letters]
    return {
        "vocab": _numbered([*specials.values(), *letters, *ends, *parts]),
        "merges": list(END_PAIRS),
    }


def byte_word_ends(specials: Specials) -> dict[str, Any]:
    """Return byte pairs of bytes that mark the ends of words."""
    parts = ["".join(pair) for pair in END_PAIRS]
    ends = [f"{one}</w>" for one in _bytes()]
    return {
        "vocab": _numbered([*specials.values(), *_bytes(), *ends, *parts]),
        "merges": list(END_PAIRS),
    }


def unigram(specials: Specials, first: Sequence[str] = ()) -> dict[str, Any]:
    """Return pieces with scores; `first` are the special tokens that a class looks for at the beginning."""
    letters = [(one, -6.0 - place / 64) for place, one in enumerate([*LETTERS, *SIGNS])]
    tokens = dict.fromkeys([*(specials[name] for name in first), *specials.values()])
    return {"vocab": [*((one, 0.0) for one in tokens), *PIECES, *letters]}


def word_pieces(specials: Specials) -> dict[str, Any]:
    """Return word pieces."""
    letters = [*LETTERS, *SIGNS]
    return {"vocab": _numbered([*specials.values(), *letters, *(f"##{one}" for one in letters), *WORDS])}


def nothing(specials: Specials) -> dict[str, Any]:
    """Return nothing: the class needs no vocabulary."""
    return {}


def _file(name: str, text: str) -> str:
    path = Path(new_folder()) / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def _merges_file(
    pairs: Sequence[tuple[str, str]], first: str = "#version: 0.2\n", counts: bool = False
) -> str:
    lines = [" ".join(pair) + (" 7" if counts else "") for pair in pairs]
    return _file("merges.txt", first + "\n".join(lines) + "\n")


def word_file(specials: Specials) -> dict[str, Any]:
    """Return a file of word pieces, one a line."""
    return {"vocab_file": _file("vocab.txt", "\n".join(word_pieces(specials)["vocab"]) + "\n")}


def byte_files(specials: Specials) -> dict[str, Any]:
    """Return the two files of byte pairs of bytes."""
    found = byte_level(specials)
    return {
        "vocab_file": _file("vocab.json", json.dumps(found["vocab"])),
        "merges_file": _merges_file(found["merges"]),
    }


def end_files(specials: Specials) -> dict[str, Any]:
    """Return the two files of byte pairs with ends of words; each merge has a count."""
    found = word_ends(specials)
    return {
        "vocab_file": _file("vocab.json", json.dumps(found["vocab"])),
        "merges_file": _merges_file(found["merges"], first="", counts=True),
    }


def cut_files(specials: Specials, tail: str = "@@") -> dict[str, Any]:
    """Return the two files of byte pairs that mark parts of words that continue."""
    letters = [*LETTERS, *SIGNS]
    parts = ["hello", "he@@", "hel@@", "wor@@", "ld", "lo"]
    vocabulary = _numbered([*specials.values(), *letters, *(f"{one}{tail}" for one in letters), *parts])
    return {
        "vocab_file": _file("vocab.json", json.dumps(vocabulary)),
        "merges_file": _merges_file(END_PAIRS),
    }


def counted_files(specials: Specials) -> dict[str, Any]:
    """Return the files of fairseq: words with their counts, merges with theirs."""
    letters = [*LETTERS, *SIGNS]
    parts = ["hello", "he@@", "hel@@", "ld", "lo"]
    lines = [f"{one} 9" for one in [*letters, *(f"{one}@@" for one in letters), *parts]]
    return {
        "vocab_file": _file("vocab.txt", "\n".join(lines) + "\n"),
        "merges_file": _merges_file(END_PAIRS, first="", counts=True),
    }


def letter_file(specials: Specials) -> dict[str, Any]:
    """Return a file of letters."""
    vocabulary = _numbered([*specials.values(), "|", " ", *LETTERS, *SIGNS, *"HELO"])
    return {"vocab_file": _file("vocab.json", json.dumps(vocabulary))}


def lined_file(specials: Specials) -> dict[str, Any]:
    """Return a file of letters, one a line."""
    vocabulary = [*specials.values(), *LETTERS, *"HELO"]
    return {"vocab_file": _file("vocab.txt", "\n".join(vocabulary))}


def spoken(specials: Specials) -> dict[str, Any]:
    """Return byte pairs of letters, with the languages of SeamlessM4T."""
    found = metaspace(specials)
    vocabulary = _numbered([*found["vocab"], *(f"__{one}__" for one in ("eng", "fra", "deu"))])
    return {**found, "vocab": vocabulary}


KINDS: Mapping[str, Callable[[Specials], dict[str, Any]]] = {
    "bytes": byte_level,
    "metaspace": metaspace,
    "spoken": spoken,
    "ends": word_ends,
    "byte ends": byte_word_ends,
    "unigram": unigram,
    "unigram, padding first": partial(unigram, first=["pad_token", "unk_token"]),
    "unigram, unknown first": partial(unigram, first=["unk_token"]),
    "unigram, as T5": partial(unigram, first=["pad_token", "eos_token", "unk_token"]),
    "words": word_pieces,
    "nothing": nothing,
    "word file": word_file,
    "byte files": byte_files,
    "end files": end_files,
    "cut files": cut_files,
    "counted files": counted_files,
    "letter file": letter_file,
    "lined file": lined_file,
}


def tokenizer_of(made: Any, kind: str, options: Mapping[str, Any]) -> Any:
    """Return a tokenizer of a class over a tiny vocabulary of a kind.

    Raises:
        NotServed: a package that the class needs is missing.
    """
    try:
        return made(**{**KINDS[kind](specials_of(made, options)), **options})
    except ImportError as error:
        raise NotServed(str(error)) from error
