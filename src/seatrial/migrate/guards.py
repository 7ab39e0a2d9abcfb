"""Conditions of a script: step guards, which test how far a run came, and branches, which exclude each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from seatrial.migrate.shell_tree import Node, is_word, text_of, word_of
from seatrial.migrate.shell_words import Unknown, Variable, expand

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
