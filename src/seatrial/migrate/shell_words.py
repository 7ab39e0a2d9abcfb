"""Words of a shell script, and their values as far as the script itself defines them.

A variable with a literal value is known, and so is the default of `${NAME:-default}`. Command substitution and
arithmetic remain unknown parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ShellError(Exception):
    """A script cannot be parsed: for example, a quote or bracket is not closed."""


@dataclass(frozen=True)
class Variable:
    """`$NAME`, `${NAME}`, `${NAME:-default}`, or `${NAME[@]}`."""

    name: str
    default: str | None = None
    is_array: bool = False


@dataclass(frozen=True)
class Unknown:
    """A part whose value only a shell can compute."""

    text: str


Part = str | Variable | Unknown


@dataclass
class Word:
    """One word of a command."""

    line: int
    parts: list[Part] = field(default_factory=list)
    array: list[Word] | None = None
    """Elements of `NAME=(...)`."""

    @property
    def literal(self) -> str | None:
        """Return the text of a word without variables, otherwise None."""
        return "".join(map(str, self.parts)) if all(isinstance(part, str) for part in self.parts) else None

    def add(self, text: str) -> None:
        """Append literal text."""
        if self.parts and isinstance(self.parts[-1], str):
            self.parts[-1] += text
        else:
            self.parts.append(text)


def expand(word: Word, values: Mapping[str, str | list[str]]) -> list[str] | str:
    """Return the list of words that a word expands to, or, as a string, why it is unknown."""
    parts = [part for part in word.parts if part != ""]
    if len(parts) == 1 and isinstance(parts[0], Variable) and parts[0].is_array:
        elements = values.get(parts[0].name)
        return elements if isinstance(elements, list) else f"the array {parts[0].name} has no literal value"
    text = ""
    for part in word.parts:
        match part:
            case str():
                text += part
            case Variable(name=name, default=default):
                value = values.get(name, default)
                if not isinstance(value, str):
                    return f"${name} has no literal value in the script"
                text += value
            case Unknown(text=source):
                return f"{source} is known only when the script runs"
    return [text]


def braced(text: str) -> Part:
    """Return the meaning of `${...}`."""
    inside = text[2:-1]
    name = NAME.match(inside)
    if name is None:
        return Unknown(text)
    rest = inside[name.end() :]
    if not rest:
        return Variable(name.group())
    if rest in ("[@]", "[*]"):
        return Variable(name.group(), is_array=True)
    if rest.startswith((":-", "-")) and not set(rest) & set("$`\"'{"):
        return Variable(name.group(), default=rest.lstrip(":").removeprefix("-"))
    return Unknown(text)
