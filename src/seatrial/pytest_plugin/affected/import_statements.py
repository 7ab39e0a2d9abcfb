"""Finds the imports of a Python file in its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from seatrial.pytest_plugin.affected.functions import STATEMENT_FIELDS


class Import(NamedTuple):
    """One import statement, or a string that names a module."""

    level: int
    """Leading dots of a relative import."""
    module: str
    names: tuple[str, ...]
    """The imported names; each may be a module too. Empty for `import module`."""
    certain: bool
    """False for a string that only looks like a module's name."""


def imports_in(nodes: Iterable[ast.AST]) -> Iterator[Import]:
    """Yield the imports at any depth, also inside functions, except those for type checkers only."""
    waiting: list[ast.AST] = list(nodes)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(0, alias.name, (), True)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.level, node.module or "", tuple(alias.name for alias in node.names), True)
        elif isinstance(node, ast.Assign):
            yield from _plugin_names(node)
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting.extend(node.orelse)
        else:
            for field in STATEMENT_FIELDS:
                waiting.extend(getattr(node, field, ()))


def _plugin_names(node: ast.Assign) -> Iterator[Import]:
    """Yield the modules in `pytest_plugins = [...]`, whose names need no dot."""
    if any(isinstance(target, ast.Name) and target.id == "pytest_plugins" for target in node.targets):
        for child in ast.walk(node.value):
            if isinstance(child, ast.Constant) and isinstance(child.value, str):
                yield Import(0, child.value, (), False)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"
