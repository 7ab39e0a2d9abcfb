"""Values of a script's variables, followed from command to command without running any.

What a block (`if`, `for`, `case`, a function) assigns is known inside it. After it, a variable that the block
may have changed is unknown: which branch a shell would take is not known here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from seatrial.checks.shell_words import Word, expand

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_DECLARING = frozenset({"export", "local", "readonly", "declare", "typeset"})
_OPENING = frozenset({"if", "for", "while", "until", "case", "select", "{"})
_BETWEEN = frozenset({"else", "elif"})
_CLOSING = frozenset({"fi", "done", "esac", "}"})
_LEADING = _OPENING | _BETWEEN | _CLOSING | {"then", "do", "!", "time", "function"}


@dataclass
class _Block:
    """A block that a shell may or may not enter."""

    before: dict[str, str | list[str]]
    changed: set[str] = field(default_factory=set)


class ShellValues:
    """Follows assignments."""

    def __init__(self) -> None:
        self.known: dict[str, str | list[str]] = {}
        self._blocks: list[_Block] = []

    def follow(self, command: list[Word]) -> list[Word]:
        """Take note of one command, and return it without the keywords in front of it."""
        place = 0
        while place < len(command) and command[place].literal in _LEADING:
            self._keyword(str(command[place].literal), command[place + 1 :])
            place += 1
        rest = command[place:]
        declaring = bool(rest) and rest[0].literal in _DECLARING
        for word in rest[1:] if declaring else rest:
            if not self._assign(word) and not declaring:
                break
        return rest

    def _keyword(self, keyword: str, following: list[Word]) -> None:
        if keyword in _OPENING:
            self._blocks.append(_Block(before=dict(self.known)))
        if keyword in ("for", "select") and following:
            self._forget(following[0].literal or "")
        if keyword in _BETWEEN and self._blocks:
            self.known = dict(self._blocks[-1].before)
        if keyword in _CLOSING and self._blocks:
            for name in self._blocks.pop().changed:
                self._forget(name)

    def _assign(self, word: Word) -> bool:
        """Take note of `NAME=value`; say whether the word is one."""
        match = _ASSIGNMENT.match(word.parts[0]) if word.parts and isinstance(word.parts[0], str) else None
        if match is None:
            return False
        name, adding = match.groups()
        before = self.known.get(name)
        self._forget(name)
        value: str | list[str] | None
        if word.array is not None:
            elements = [expand(item, self.known) for item in word.array]
            known = [item for item in elements if isinstance(item, list)]
            value = [text for item in known for text in item] if len(known) == len(elements) else None
        else:
            parts = [str(word.parts[0])[match.end() :], *word.parts[1:]]
            found = expand(Word(line=word.line, parts=parts), self.known)
            value = found[0] if isinstance(found, list) else None
        if value is not None and adding:
            same_kind = isinstance(before, type(value))
            value = before + value if same_kind else None  # type: ignore[operator]
        if value is not None:
            self.known[name] = value
        return True

    def _forget(self, name: str) -> None:
        self.known.pop(name, None)
        for block in self._blocks:
            block.changed.add(name)
