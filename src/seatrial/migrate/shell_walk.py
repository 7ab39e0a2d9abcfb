"""Walks through a script command by command and tracks variables, branches and guards; nothing is executed.

Assignments in a block (`if`, `for`, `case`, a function) apply inside it. After the block, a variable that it may have
changed is unknown, because the executed branch is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from seatrial.migrate.shell import Node, Unknown, Variable, Word, expand, is_word, text_of, word_of, words_of

_TAGS = (re.compile(r'\.key\s*==\s*"([^"]+)"'), re.compile(r'\."([^"]+)"'), re.compile(r'\["([^"]+)"\]'))
_LAST_STEP = (re.compile(r"keys.*max", re.DOTALL), re.compile(r"\bgrep\s+-\w*c.*\bstep\b", re.DOTALL))
"""Commands that report how far a run came: the largest key of a series, or the number of steps in the console log."""
_SIGNS = {
    "-ge": ">=", ">=": ">=", "-gt": ">", ">": ">", "-lt": "<", "<": "<", "-le": "<=", "<=": "<=",
    "-eq": "==", "==": "==", "=": "==", "-ne": "!=", "!=": "!=",
}  # fmt: skip
_OPPOSITE = {">=": "<", ">": "<=", "<": ">=", "<=": ">", "==": "!=", "!=": "=="}


@dataclass(frozen=True)
class StepGuard:
    """The run must have logged a step."""

    steps: int | str
    """The step, or why it is unknown."""
    tag: str | None
    """The series whose steps count, if the script says so."""
    line: int


@dataclass(frozen=True)
class Branch:
    """One of several branches of a script that exclude each other."""

    statement: int
    """Byte at which the `if` or `case` begins: branches of one statement exclude each other."""
    way: int
    """Number of the branch, from 0."""
    label: str
    """The condition as written."""
    parameter: tuple[str, str] | None = None
    """Name and value of the variable that selects the branch."""


def step_guard(
    condition: Node, holds: bool, values: Mapping[str, str | list[str]], computed: Mapping[str, str]
) -> StepGuard | None:
    """Return the guard that a condition (or its negation) expresses; None if it tests no step.

    Args:
        condition: `[[ $(jq ... max' FILE) -ge $MAX_STEPS ]]` or similar.
        holds: whether the code that follows runs if the condition is true, or if it is false.
        values: variables with a literal value.
        computed: variables set by a command, with that command.
    """
    compared = _comparison(condition)
    if compared is None:
        return None
    left, sign, right = compared
    sign = sign if holds else _OPPOSITE[sign]
    source = _source(left, computed)
    if sign not in (">=", ">", "==") or not any(pattern.search(source) for pattern in _LAST_STEP):
        return None
    found = next((match[1] for pattern in _TAGS if (match := pattern.search(source))), None)
    line = condition.start_point[0] + 1
    name = text_of(right)
    bound = expand(word_of(right), values) if is_word(right) else name
    if right.type == "variable_name" and isinstance(value := values.get(name), str):
        bound = [value]
    if isinstance(bound, list) and bound and bound[0].isdecimal():
        return StepGuard(int(bound[0]) + (sign == ">"), found, line)
    return StepGuard(bound if isinstance(bound, str) else f"{text_of(right)} is no number", found, line)


def branch_of(condition: Node | None, statement: int, way: int, before: Branch | None) -> Branch:
    """Return the branch taken if a condition is true; None as the condition means the `else` branch."""
    if condition is None:
        label = "otherwise" if before is None else f"not {before.label}"
        chosen = None if before is None or before.parameter is None else before.parameter
        return Branch(statement, way, label, None if chosen is None else (chosen[0], f"not {chosen[1]}"))
    label = " ".join(text_of(condition).split())
    compared = _comparison(condition)
    if compared is not None and compared[1] == "==":
        names = [part.name for part in word_of(compared[0]).parts if isinstance(part, Variable)]
        value = word_of(compared[2]).literal if is_word(compared[2]) else None
        if len(names) == 1 and value is not None:
            return Branch(statement, way, label, (names[0], value))
    return Branch(statement, way, label)


def _comparison(condition: Node) -> tuple[Node, str, Node] | None:
    """Return both sides and the operator of a condition that is one comparison; None otherwise."""
    inner = [child for child in condition.children if child.type == "binary_expression"]
    if condition.type not in ("test_command", "compound_statement") or len(inner) != 1:
        return None
    sides = [child for child in inner[0].children if child.is_named and child.type != "test_operator"]
    signs = [text_of(child).strip() for child in inner[0].children if child not in sides]
    if len(sides) != 2 or len(signs) != 1 or signs[0] not in _SIGNS:
        return None
    return sides[0], _SIGNS[signs[0]], sides[1]


def _source(node: Node, computed: Mapping[str, str]) -> str:
    """Return the command that computes one side of a comparison."""
    if node.type == "variable_name":
        return computed.get(text_of(node), "")
    parts = word_of(node).parts if is_word(node) else []
    return "".join(
        part.text if isinstance(part, Unknown) else computed.get(getattr(part, "name", ""), "")
        for part in parts
    )


OnCommand: TypeAlias = Callable[["ScriptWalk", list[Word]], None]

_CONDITIONS = frozenset(
    {"test_command", "compound_statement", "command", "negated_command", "list", "pipeline"}
    | {"redirected_statement", "subshell"}
)


class ScriptWalk:
    """One pass through the text of a script."""

    def __init__(self, on_command: OnCommand) -> None:
        self.values: dict[str, str | list[str]] = {}
        """Variables with a literal value."""
        self.computed: dict[str, str] = {}
        """Variables set by a command, now or in an earlier block, with that command."""
        self.path: tuple[Branch, ...] = ()
        """The branches that lead to the current command."""
        self.guards: tuple[StepGuard, ...] = ()
        """What a run must satisfy before the current command is reached."""
        self._on_command = on_command
        self._changed: list[set[str]] = []

    def walk(self, node: Node) -> None:
        """Visit a node and its descendants, in the order of the text."""
        match node.type:
            case "command":
                self._on_command(self, words_of(node))
            case "redirected_statement" if any(child.type == "command" for child in node.children):
                self._on_command(self, words_of(node))
            case "variable_assignment":
                self._assign(node)
            case "if_statement":
                self._if(node)
            case "case_statement":
                self._case(node)
            case (
                "for_statement"
                | "c_style_for_statement"
                | "while_statement"
                | "function_definition"
                | "subshell"
            ):
                with self._block():
                    for child in node.children:
                        if child.type == "variable_name":
                            self._clear(text_of(child))
                        self.walk(child)
            case "heredoc_redirect" | "file_redirect" | "command_substitution" | "test_command":
                return
            case _:
                for child in node.children:
                    self.walk(child)

    def _if(self, node: Node) -> None:
        """Visit each branch of an `if`; a branch that only exits the script is a guard of the code that follows."""
        ways = _branches(node)
        ended: list[StepGuard] = []
        before: Branch | None = None
        for number, (condition, body) in enumerate(ways):
            guard = None if condition is None else step_guard(condition, True, self.values, self.computed)
            leaves = condition is not None and len(ways) == 1 and _ends_script(body)
            if condition is not None and leaves:
                opposite = step_guard(condition, False, self.values, self.computed)
                ended += [opposite] if opposite else []
            path, guards = self.path, self.guards
            if guard is not None:
                self.guards = (*guards, guard)
            else:
                before = branch_of(condition, node.start_byte, number, before if number == 1 else None)
                self.path = (*path, before)
            with self._block():
                for child in body:
                    self.walk(child)
            self.path, self.guards = path, guards
        self.guards = (*self.guards, *ended)

    def _case(self, node: Node) -> None:
        subject = next((child for child in node.children if is_word(child)), None)
        items = [child for child in node.children if child.type == "case_item"]
        for number, item in enumerate(items):
            patterns = [
                child for child in item.children if child.type in ("word", "extglob_pattern", "string")
            ]
            pattern = text_of(patterns[0]).strip() if patterns else ""
            names = [part.name for part in word_of(subject).parts if hasattr(part, "name")] if subject else []
            parameter = (names[0], pattern) if len(names) == 1 and pattern != "*" else None
            path = self.path
            self.path = (*path, Branch(node.start_byte, number, f"{pattern})", parameter))
            with self._block():
                for child in item.children:
                    if child not in patterns:
                        self.walk(child)
            self.path = path

    @contextmanager
    def _block(self) -> Iterator[None]:
        """Limit the assignments of a block to the block."""
        before, computed = dict(self.values), dict(self.computed)
        self._changed.append(set())
        yield
        changed, inside = self._changed.pop(), self.computed
        self.values, self.computed = before, computed
        for name in changed:
            self._clear(name)
            # A guard that tests such a variable was given a command's value: the literal from before is out of date.
            self.computed.update({name: inside[name] for name in changed & inside.keys()})

    def _assign(self, node: Node) -> None:
        """Record `NAME=value`."""
        name = next((text_of(child) for child in node.children if child.type == "variable_name"), None)
        if name is None:
            return
        adding = any(child.type == "+=" for child in node.children)
        value_node = (
            node.children[-1] if is_word(node.children[-1]) or node.children[-1].type == "array" else None
        )
        before = self.values.get(name)
        self._clear(name)
        word = Word(line=0, parts=[""]) if value_node is None else word_of(value_node)
        value = self._value(word)
        if value is not None and adding:
            same_kind = isinstance(before, type(value))
            value = before + value if same_kind else None  # type: ignore[operator]
        if value is not None:
            self.values[name] = value
        elif len(word.parts) == 1 and isinstance(word.parts[0], Unknown):
            self.computed[name] = word.parts[0].text

    def _value(self, word: Word) -> str | list[str] | None:
        if word.array is None:
            found = expand(word, self.values)
            return found[0] if isinstance(found, list) and len(found) == 1 else None
        elements = [expand(item, self.values) for item in word.array]
        known = [item for item in elements if isinstance(item, list)]
        return [text for item in known for text in item] if len(known) == len(elements) else None

    def _clear(self, name: str) -> None:
        self.values.pop(name, None)
        self.computed.pop(name, None)
        for changed in self._changed:
            changed.add(name)


def _branches(node: Node) -> list[tuple[Node | None, list[Node]]]:
    """Return condition and body of each branch of an `if`; the condition of `else` is None."""
    ways: list[tuple[Node | None, list[Node]]] = []
    condition, body, is_body = None, list[Node](), False
    for child in node.children:
        if child.type == "then":
            is_body = True
        elif child.type in ("elif_clause", "else_clause"):
            inner = child.children
            then = next((place for place, one in enumerate(inner) if one.type == "then"), 0)
            tested = next((one for one in inner[:then] if one.type in _CONDITIONS), None)
            ways.append((tested, list(inner[then + 1 :])))
        elif is_body:
            body.append(child)
        elif child.type in _CONDITIONS and condition is None:
            condition = child
    return [(condition, body), *ways]


def _ends_script(body: Sequence[Node]) -> bool:
    """Return whether the last command of a body exits the script with an error."""
    commands = [child for child in body if child.type == "command"]
    words = [word.literal for word in words_of(commands[-1])] if commands else []
    return len(words) > 1 and words[0] in ("exit", "return") and words[1] != "0"
