"""Walks through a script command by command and tracks variables, branches and guards; nothing is executed.

Assignments in a block (`if`, `for`, `case`, a function) apply inside it. After the block, a variable that it may have
changed is unknown, because the executed branch is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from seatrial.migrate.guards import Branch, StepGuard, branch_of, step_guard
from seatrial.migrate.shell_tree import Node, is_word, text_of, word_of, words_of
from seatrial.migrate.shell_words import Unknown, Word, expand

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
