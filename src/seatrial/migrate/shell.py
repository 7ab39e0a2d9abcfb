"""Parses shell scripts with tree-sitter-bash and reads their words; nothing is executed.

A variable with a literal value is known, and so is the default of `${NAME:-default}`. Command substitution and
arithmetic remain unknown parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import tree_sitter
import tree_sitter_bash

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


Node = tree_sitter.Node

_SPLIT_WORD = re.compile(r"[^\s\\]\\\n#|\\\t|\\ (?=\s|$)|(?:^|[\s'\"])\\ ")
"""Words whose end the parser loses: they continue with # on the next line, contain an escaped tab, or begin or end
with an escaped blank."""
_ESCAPED = re.compile(r"\\(.|\n)", re.DOTALL)
_SUBSTITUTIONS = frozenset({"command_substitution", "arithmetic_expansion", "process_substitution"})
_WORDS = frozenset(
    {"word", "number", "string", "raw_string", "ansi_c_string", "translated_string", "concatenation"}
    | {"$", "simple_expansion", "expansion", "brace_expression", "extglob_pattern", "regex", "test_operator"}
    | {"==", "=~"}  # The parser's types for these signs in a command's words, where they are plain text.
    | _SUBSTITUTIONS
)

_CLOSING = frozenset({"fi", "done", "esac", "}"})
"""What may be missing at the end of a script without loss of content."""

_SIGNS = "¡¢£¤¥¦§¨©«¬®¯°±´"
"""Sixteen characters below U+0100 without a meaning in a shell; two of them stand for a byte."""
_BLANKS = " \t\n\r\v\f"
"""Characters that separate words: a blank outside ASCII is part of a word."""
_OUTSIDE_ASCII = re.compile(r"[^\x00-\x7f]+")


@cache
def _language() -> tree_sitter.Language:
    return tree_sitter.Language(tree_sitter_bash.language())


def parse_script(text: str) -> Node:
    """Return the tree of a script.

    Raises:
        ShellError: the text is not a shell script; names the line.
    """
    split = _SPLIT_WORD.search(text)
    if split is not None:
        line = text[: split.end()].count("\n") + 1
        raise ShellError(f"line {line}: the parser loses the end of a word here; write it in quotes")
    # A new parser per script: the scanner of tree-sitter-bash keeps here-documents that a broken script left open,
    # reads the next script with them, and may crash.
    root = tree_sitter.Parser(_language()).parse(_in_signs(text).encode()).root_node
    fault = _first_fault(root) if root.has_error else None
    if fault is not None:
        raise ShellError(f"line {line_of(fault)}: {_what_is_wrong(fault)}")
    return root


def _in_signs(text: str) -> str:
    """Return a script with each byte of its non-ASCII characters encoded as two signs.

    The scanner of tree-sitter-bash 0.25.1 looks up the class of every character in the C library's table of 256
    entries: beyond U+00FF it reads other memory, and `{` before U+7234B kills the process.
    """
    return _OUTSIDE_ASCII.sub(
        lambda found: "".join(
            _SIGNS[byte >> 4] + _SIGNS[byte & 15] for byte in found[0].encode("utf-8", errors="replace")
        ),
        text,
    )


def _from_signs(raw: bytes) -> str:
    """Return the text that `_in_signs` encoded, for a part of its result."""

    def read(found: re.Match[str]) -> str:
        values = [_SIGNS.find(sign) for sign in found[0]]
        whole = bytes(16 * high + low for high, low in zip(values[::2], values[1::2], strict=False))
        return whole.decode("utf-8", errors="replace")

    return _OUTSIDE_ASCII.sub(read, raw.decode("utf-8", errors="replace"))


def line_of(node: Node) -> int:
    """Return the line in which a node begins, from 1, ignoring its leading white space."""
    return (
        node.start_point[0] + 1 + (text_of(node)[: -len(text_of(node).lstrip(_BLANKS)) or None].count("\n"))
    )


def text_of(node: Node) -> str:
    """Return a node's source text."""
    return _from_signs(node.text or b"")


def is_word(node: Node) -> bool:
    """Return whether a node is a word of a command."""
    return node.type in _WORDS


def words_of(command: Node) -> list[Word]:
    """Return the words of a simple command, its name first, without assignments and redirections.

    Args:
        command: a `command`, or a `redirected_statement` around one: words may also follow a redirection.
    """
    nodes: list[Node] = []
    for child in command.children:
        if child.type == "command":
            nodes += [*child.children]
        elif child.type == "file_redirect":
            nodes += [inner for inner in child.children if is_word(inner)][1:]
        elif child.type == "heredoc_redirect":
            nodes += [inner for inner in child.children if is_word(inner)]
        else:
            nodes.append(child)
    names = [inner for node in nodes for inner in (node.children if node.type == "command_name" else [node])]
    return _joined(command, [node for node in names if is_word(node)])


def _joined(command: Node, nodes: list[Node]) -> list[Word]:
    """Return words; several nodes without a gap between them are one word."""
    words: list[Word] = []
    end = -1
    for place, node in enumerate(nodes):
        following = nodes[place + 1] if place + 1 < len(nodes) else None
        begin = node.start_byte + len(text_of(node)) - len(text_of(node).lstrip(_BLANKS))
        # A translated string, $"...": without a catalogue it equals the string.
        is_sign = text_of(node).strip() == "$" and following is not None and following.type == "string"
        is_sign = is_sign and following is not None and following.start_byte == node.end_byte
        word = Word(line=line_of(node), parts=[""]) if is_sign else word_of(node)
        source, offset = command.text or b"", command.start_byte
        if words and not source[end - offset : begin - offset].replace(b"\\\n", b""):
            # A dollar sign that the tree separates from the name after it: its value is unknown.
            is_separated = text_of(nodes[place - 1]).endswith("$") and not is_sign and node.type != "string"
            words[-1].parts += [Unknown("$"), *word.parts] if is_separated else word.parts
        else:
            words.append(word)
        end = node.end_byte
    return words


def word_of(node: Node) -> Word:
    """Return one word; an array is a word with elements."""
    word = Word(line=line_of(node))
    if node.type == "array":
        word.array = [word_of(child) for child in node.children if is_word(child)]
        return word
    for part in _parts(node):
        if isinstance(part, str):
            word.add(part)
        else:
            word.parts.append(part)
    return word


def _parts(node: Node) -> Iterator[Part]:
    text = text_of(node).lstrip(_BLANKS) if node.type != "string_content" else text_of(node)
    match node.type:
        case "raw_string":
            yield text[1:-1]
        case "ansi_c_string":
            yield Unknown(text) if "\\" in text else text[2:-1]
        case "string":
            yield from _double_quoted(node)
        case "concatenation" | "translated_string":
            if text.count("$$"):
                yield Unknown(text)
                return
            followers = [*node.children[1:], None]
            for child, following in zip(node.children, followers, strict=True):
                if text_of(child).strip() != "$" or following is None or following.type != "string":
                    yield from _parts(child)
        case "simple_expansion":
            name = text.removeprefix("$").replace("\\\n", "")
            yield Variable(name) if NAME.fullmatch(name) else Unknown(text)
        case "expansion":
            yield braced(text)
        case "word" | "number" | "test_operator" | "$" | "==" | "=~":
            yield _ESCAPED.sub(lambda found: "" if found[1] == "\n" else found[1], text)
        case "extglob_pattern" | "regex":
            yield text
        case _:
            yield Unknown(text)


def _double_quoted(node: Node) -> Iterator[Part]:
    """Yield the parts between double quotes; white space outside the child nodes, or at their start, is text."""
    inside = [child for child in node.children if child.type != '"']
    source, begin = node.text or b"", node.start_byte
    at = source.index(b'"') + 1
    yield ""
    for child in inside:
        start = child.start_byte - begin
        held = source[start : child.end_byte - begin]
        blank = len(held) - len(held.lstrip()) if child.type != "string_content" else 0
        yield _unescaped(source[at : start + blank])
        if child.type == "string_content":
            yield _unescaped(held)
        else:
            yield from _parts(child)
        at = child.end_byte - begin
    yield _unescaped(source[at : source.rindex(b'"')])


def _unescaped(raw: bytes) -> str:
    text = _from_signs(raw)
    return _ESCAPED.sub(
        lambda found: {"\n": ""}.get(found[1], found[1] if found[1] in '"\\$`' else found[0]), text
    )


def _first_fault(node: Node) -> Node | None:
    if node.is_error or (node.is_missing and node.type not in _CLOSING):
        return node
    return next(
        (found for child in node.children if child.has_error and (found := _first_fault(child))), None
    )


def _what_is_wrong(node: Node) -> str:
    text = text_of(node)
    if node.is_missing:
        return f"{node.type} is missing"
    for sign, name in (("'", "a single quote"), ('"', "a double quote"), ("`", "a backquote")):
        if text.count(sign) % 2:
            return f"{name} is not closed"
    return f"this is no shell command: {' '.join(text.split())[:60]}"
