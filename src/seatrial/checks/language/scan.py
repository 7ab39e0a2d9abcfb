"""The first look at the text of a check, before Python's parser sees it: size, characters, words.

Every limit is far above what users write (the longest of NeMo RL's 855 expressions has 120 characters) and
far below what could cost time or memory.
"""

from __future__ import annotations

import re
import unicodedata

from seatrial.errors import UsageError

MAX_LENGTH = 2000
"""Characters of a check."""
MAX_TOKENS = 300
"""Words, numbers, strings and signs of a check."""
MAX_DEPTH = 20
"""Brackets inside one another."""
MAX_SIGNS = 8
"""Signs and `not` directly after one another."""
MAX_MAGNITUDE = 1e18
"""Largest absolute value of a literal."""
SHOWN = 60
"""Characters of the check that a message shows around the fault."""

_TOKEN = re.compile(
    r"""(?P<space>[ \t]+)
    |(?P<string>"[^"]*"|'[^']*')
    |(?P<number>(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign><=|>=|==|!=|<|>|\+|-|\*|/|=)
    |(?P<open>[(\[])
    |(?P<close>[)\]])
    |(?P<comma>,)""",
    re.VERBOSE,
)

_NOT_HERE = {
    ".": 'there are no attributes; series are data["TAG"], points data["TAG"]["STEP"]',
    "%": "allowed are + - * /",
    "^": "allowed are + - * /",
    "&": "join comparisons with 'and'",
    "|": "join comparisons with 'or'",
    "!": "write != or 'not'",
    ";": "one check, one comparison; give several checks",
    "{": "there are no sets, mappings or comprehensions",
    "}": "there are no sets, mappings or comprehensions",
    ":": "there are no slices or lambdas; ranges are steps(first, last), last(count), after(step)",
    "#": "there are no comments",
    "\n": "a check is one line",
}
"""Signs of Python that are not in the language, and what is."""


def refusal(text: str, column: int, message: str) -> UsageError:
    """Return the usage error of a check: what is wrong, in which column, and the place with a caret."""
    start = max(0, column - 1 - SHOWN // 2)
    part = "".join(c if c.isprintable() else "?" for c in text[start : start + SHOWN])
    before = "..." if start else ""
    after = "..." if start + SHOWN < len(text) else ""
    caret = " " * (len(before) + column - 1 - start) + "^"
    return UsageError(f"check refused at column {column}: {message}\n    {before}{part}{after}\n    {caret}")


def scan(text: str) -> str:
    """Check size, characters and words, and return the text without spaces around it.

    Raises:
        UsageError: the text is empty, too long, nested too deep, or holds something outside the language.
    """
    if len(text) > MAX_LENGTH:
        raise refusal(text[:SHOWN], 1, f"it has {len(text):,} characters; at most {MAX_LENGTH:,} are read")
    if not text.strip():
        raise UsageError('check refused: it is empty; write one such as max(data["train/loss"]) < 2')
    text = text.strip(" \t\r\n")
    position = depth = tokens = signs = 0
    previous = ""
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _bad_character(text, position)
        kind = str(match.lastgroup)
        token = match.group()
        column = position + 1
        position = match.end()
        if kind == "space":
            continue
        tokens += 1
        depth += {"open": 1, "close": -1}.get(kind, 0)
        signs = signs + 1 if kind == "sign" or token == "not" else 0
        if tokens > MAX_TOKENS:
            raise refusal(
                text, column, f"it has more than {MAX_TOKENS} words and signs; write several checks"
            )
        if depth > MAX_DEPTH:
            raise refusal(text, column, f"brackets are nested deeper than {MAX_DEPTH}")
        if signs > MAX_SIGNS:
            raise refusal(text, column, f"more than {MAX_SIGNS} signs after one another")
        if kind == "string":
            _scan_string(text, column, token, previous)
        elif kind == "number":
            _scan_number(text, column, token, text[position : position + 1])
        elif token == "*" and text[position : position + 1] == "*":
            raise refusal(text, column, "** is not in the language; allowed are + - * /")
        elif token == "/" and text[position : position + 1] == "/":
            raise refusal(text, column, "// is not in the language; allowed are + - * /")
        previous = kind
    return text


def _scan_string(text: str, column: int, token: str, previous: str) -> None:
    """Refuse escapes, joined strings and invisible characters in a tag or step."""
    if previous == "string":
        raise refusal(text, column, "two strings after one another; write one")
    if previous == "word" and text[column - 2 : column - 1].isalnum():
        raise refusal(text, column, 'a string has no prefix here; write it plain: "train/loss"')
    if len(token) == 2 and text[column + 1 : column + 2] == token[0]:
        raise refusal(text, column, 'triple quotes are not in the language; write "train/loss"')
    for index, character in enumerate(token):
        if character == "\\":
            raise refusal(text, column + index, "a backslash is not allowed in a name")
        if not character.isprintable():
            name = unicodedata.name(character, f"U+{ord(character):04X}")
            raise refusal(text, column + index, f"invisible character {name} in a name")


def _scan_number(text: str, column: int, token: str, after: str) -> None:
    """Refuse numbers that are too large, or that run into a word (`0x1F`, `3j`)."""
    if after and (after.isalnum() or after in "_."):
        raise refusal(
            text, column, f"'{token}{after}' is not a number here; write decimal numbers such as 0.5 or 1e-3"
        )
    if len(token) > 40 or abs(float(token.replace("_", ""))) > MAX_MAGNITUDE:
        raise refusal(text, column, f"a number may not exceed {MAX_MAGNITUDE:g}")


def _bad_character(text: str, position: int) -> UsageError:
    """Name the character that is not in the language."""
    character = text[position]
    if character in "\"'":
        return refusal(text, position + 1, "a string is not closed")
    shown = f"'{character}'" if character.isprintable() else "a control character"
    if character in _NOT_HERE:
        return refusal(text, position + 1, f"{shown} is not in the language: {_NOT_HERE[character]}")
    name = unicodedata.name(character, f"U+{ord(character):04X}")
    hint = "; it is not the ASCII letter or sign that it looks like" if ord(character) > 127 else ""
    return refusal(text, position + 1, f"{shown} ({name}) is not in the language{hint}")
