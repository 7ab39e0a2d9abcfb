"""Reads the size of a job from its test script, between `BEGIN CONFIG` and `END CONFIG`.

The script is not run. Supported are `NAME=number`, `NAME=${NAME:-number}` and `NAME=$(( arithmetic ))` over names set
before, which is what the suites use; the caller's environment is ignored.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping

from seatrial.errors import BlockedError

SIZES = ("NUM_NODES", "GPUS_PER_NODE", "NUM_MINUTES", "NUM_RUNS", "SEGMENT_SIZE")
"""Names that decide how a job is submitted; other names may have any value."""
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?(\w+)=(.*)$")
_DEFAULT = re.compile(r"\$\{\w+:-(\d+)\}")
_NAME = re.compile(r"\$\{?(\w+)\}?")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def config_of(text: str) -> dict[str, int]:
    """Return the integers that the CONFIG block of a script sets, by name.

    Raises:
        BlockedError: one of `SIZES` has a value that cannot be read without running the script.
    """
    found: dict[str, int] = {}
    inside = False
    for line in text.splitlines():
        if "BEGIN CONFIG" in line:
            inside = True
        elif "END CONFIG" in line:
            inside = False
        elif inside and (assignment := _ASSIGNMENT.match(line)) is not None:
            name, written = assignment[1], _without_comment(assignment[2])
            value = _value(written, found)
            if value is not None:
                found[name] = value
            elif name in SIZES:
                raise BlockedError(
                    f"the test script sets {name}={written}, which cannot be read without running it; "
                    "write a number there (SED_CLAUSES can)"
                )
    return found


def _without_comment(written: str) -> str:
    return re.sub(r"(^|\s)#.*$", "", written).strip().strip("\"'")


def _value(written: str, known: Mapping[str, int]) -> int | None:
    """Return the integer value of a shell word, or None."""
    text = _DEFAULT.sub(r"\1", written)
    if arithmetic := re.fullmatch(r"\$\(\((.*)\)\)", text):
        try:
            return _arithmetic(ast.parse(_NAME.sub(r"\1", arithmetic[1].strip()), mode="eval").body, known)
        except (SyntaxError, KeyError, ZeroDivisionError):
            return None
    if named := _NAME.fullmatch(text):
        return known.get(named[1])
    return int(text) if re.fullmatch(r"\d+", text) else None


def _arithmetic(node: ast.expr, known: Mapping[str, int]) -> int:
    """Compute the shell's result, for positive numbers.

    Raises:
        KeyError: an unknown name or operation.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return known[node.id]
    if isinstance(node, ast.BinOp):
        operation = _OPERATORS[type(node.op)]
        return int(operation(_arithmetic(node.left, known), _arithmetic(node.right, known)))
    raise KeyError(type(node).__name__)
