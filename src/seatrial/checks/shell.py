"""Commands of a shell script, read and never run: quoting, continuation, comments, here-documents."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator

from seatrial.checks.shell_words import Part, ShellError, Unknown, Variable, Word, braced

_REDIRECTION = re.compile(r"<<<|<<-|<<|[<>]+[&|]?")
_ANSI_QUOTED = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)
_NAME_OVER_LINES = re.compile(r"(?:\\\n)*[A-Za-z_](?:\\\n|[A-Za-z0-9_])*")
_SEPARATORS = ";&|()\n"
_BLANK = " \t\r"


def read_commands(text: str) -> Iterator[list[Word]]:
    """Yield the simple commands of a script as lists of words, in the order of the text.

    Raises:
        ShellError: a quote or bracket is not closed.
    """
    return _Lexer(text).commands()


class _Lexer:
    """Splits a script into commands."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.here_documents: list[tuple[str, bool]] = []
        self.newlines = [place for place, character in enumerate(text) if character == "\n"]

    def commands(self) -> Iterator[list[Word]]:
        """Yield each simple command."""
        command: list[Word] = []
        while self.at < len(self.text):
            character = self.text[self.at]
            if character in _BLANK:
                self.at += 1
            elif self._continues():
                self.at += 2
            elif character == "#":
                self.at = self._end_of_line()
            elif character in _SEPARATORS:
                if command:
                    yield command
                command = []
                self.at += 1
                if character == "\n":
                    self._skip_here_documents()
            elif character in "<>":
                self._redirection(command)
            else:
                command.append(self._word())
        if command:
            yield command

    def _redirection(self, command: list[Word]) -> None:
        """Skip a redirection with its target; remember the end of a here-document."""
        if command and (command[-1].literal or "").isdigit() and self.text[self.at - 1].isdigit():
            command.pop()
        sign = _REDIRECTION.match(self.text, self.at)
        assert sign is not None
        self.at = sign.end()
        while self.at < len(self.text) and self.text[self.at] in _BLANK:
            self.at += 1
        if self.at < len(self.text) and self.text[self.at] == "(":
            self._bracketed("(", ")")
            return
        target = self._word() if self.at < len(self.text) and self.text[self.at] not in _SEPARATORS else None
        if sign.group() in ("<<", "<<-") and target is not None:
            self.here_documents.append((target.literal or "", sign.group() == "<<-"))

    def _skip_here_documents(self) -> None:
        """Move past the here-documents that the line just ended announced."""
        for delimiter, tabs in self.here_documents:
            while self.at < len(self.text):
                end = self._end_of_line()
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if (line.lstrip("\t") if tabs else line) == delimiter:
                    break
        self.here_documents = []

    def _word(self) -> Word:
        """Read one word, with `NAME=(...)` as one."""
        word = Word(line=self._line())
        while self.at < len(self.text):
            character = self.text[self.at]
            if self._continues():
                self.at += 2
            elif character == "(" and (word.literal or "").endswith("="):
                word.array = self._array()
                break
            elif character in _BLANK or character in _SEPARATORS or character in "<>":
                break
            elif character == "\\":
                word.add(self.text[self.at + 1 : self.at + 2])
                self.at += 2
            elif character == "'":
                word.add(self._single_quoted())
            elif character == '"':
                self._double_quoted(word)
            elif self.text.startswith('$"', self.at):
                self.at += 1  # A translated string: without a catalogue it is the string.
            elif self.text.startswith("$'", self.at):
                self._ansi_quoted(word)
            elif character == "$":
                word.parts.append(self._dollar())
            elif character == "`":
                word.parts.append(Unknown(self._until("`")))
            else:
                word.add(character)
                self.at += 1
        return word

    def _array(self) -> list[Word]:
        self.at += 1
        elements: list[Word] = []
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == ")":
                self.at += 1
                return elements
            if character in _BLANK or character == "\n":
                self.at += 1
            elif self._continues():
                self.at += 2
            elif character == "#":
                self.at = self._end_of_line()
            elif character in "<>;&|(":
                raise ShellError(f"line {self._line()}: {character} inside an array")
            else:
                elements.append(self._word())
        raise ShellError("an array is not closed")

    def _single_quoted(self) -> str:
        start = self.at + 1
        end = self.text.find("'", start)
        if end < 0:
            raise ShellError(f"line {self._line()}: a single quote is not closed")
        self.at = end + 1
        return self.text[start:end]

    def _ansi_quoted(self, word: Word) -> None:
        """Read `$'...'`; one with escapes is left unknown."""
        match = _ANSI_QUOTED.match(self.text, self.at)
        if match is None:
            raise ShellError(f"line {self._line()}: a $' quote is not closed")
        self.at = match.end()
        if "\\" in match.group():
            word.parts.append(Unknown(match.group()))
        else:
            word.add(match.group()[2:-1])

    def _double_quoted(self, word: Word) -> None:
        start = self._line()
        self.at += 1
        word.add("")
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == '"':
                self.at += 1
                return
            if character == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                word.add({"\n": ""}.get(following, following if following in '"\\$`' else f"\\{following}"))
                self.at += 2
            elif character == "$":
                word.parts.append(self._dollar())
            elif character == "`":
                word.parts.append(Unknown(self._until("`")))
            else:
                word.add(character)
                self.at += 1
        raise ShellError(f"line {start}: a double quote is not closed")

    def _dollar(self) -> Part:
        """Read what starts with a dollar sign."""
        start = self.at
        following = self.text[start + 1 : start + 2]
        if following == "(":
            self.at += 1
            self._bracketed("(", ")")
            return Unknown(self.text[start : self.at])
        if following == "{":
            self.at += 1
            self._bracketed("{", "}")
            return braced(self.text[start : self.at])
        name = _NAME_OVER_LINES.match(self.text, start + 1)
        if name:
            self.at = name.end()
            return Variable(name.group().replace("\\\n", ""))
        if following and following in "@*#?!$-0123456789":
            self.at += 2
            return Unknown(f"${following}")
        self.at += 1
        # A dollar sign cut from what follows by the end of a line: only a shell knows.
        return Unknown("$") if following == "\\" else "$"

    def _bracketed(self, opening: str, closing: str) -> None:
        """Move past a bracket and what it holds."""
        start, depth = self._line(), 0
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == "'" and closing == ")":
                self._single_quoted()
                continue
            depth += (character == opening) - (character == closing)
            self.at += 2 if character == "\\" else 1
            if depth == 0:
                return
        raise ShellError(f"line {start}: {opening} is not closed")

    def _until(self, sign: str) -> str:
        end = self.text.find(sign, self.at + 1)
        if end < 0:
            raise ShellError(f"line {self._line()}: {sign} is not closed")
        text = self.text[self.at : end + 1]
        self.at = end + 1
        return text

    def _continues(self) -> bool:
        return self.text.startswith("\\\n", self.at)

    def _end_of_line(self) -> int:
        end = self.text.find("\n", self.at)
        return len(self.text) if end < 0 else end

    def _line(self) -> int:
        return bisect.bisect_left(self.newlines, self.at) + 1
