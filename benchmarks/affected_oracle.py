"""Which tests truly run which functions: the independent oracle of `affected_audit.py`.

A copy of the project is rewritten so that each function of interest calls `ran` first. Nothing of the plugin is
used. Loaded by the rewritten modules in the tests' process and its children, and by pytest as a plugin that says
what was selected and how it ended: nothing but the standard library.
"""

from __future__ import annotations

import ast
import atexit
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

OUT_VARIABLE = "AFFECTED_ORACLE_OUT"
SESSION_VARIABLE = "AFFECTED_ORACLE_SESSION"
"""File for the outcome of each test that was selected; null where it did not run."""
AT_IMPORT = ""
"""Stands for a test where a function ran before any test did: every test of that process depends on it."""
_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_seen: dict[str, set[str]] = {}
_outcomes: dict[str, str | None] = {}


def ran(name: str) -> None:
    """Note that a function runs, for the test that runs now."""
    test = os.environ.get("PYTEST_CURRENT_TEST", AT_IMPORT).rpartition(" (")[0]
    if not _seen:
        atexit.register(_save)
    _seen.setdefault(name, set()).add(test)


def _save() -> None:
    out = Path(os.environ[OUT_VARIABLE]) / f"{os.getpid()}.json"
    out.write_text(json.dumps({name: sorted(tests) for name, tests in _seen.items()}))


def pytest_collection_finish(session: Any) -> None:
    """Note what was selected."""
    _outcomes.update(dict.fromkeys(item.nodeid for item in session.items))


def pytest_runtest_logreport(report: Any) -> None:
    """Note the worst outcome of a test's phases."""
    if report.outcome != "passed" or _outcomes.get(report.nodeid) is None:
        _outcomes[report.nodeid] = report.outcome


def pytest_unconfigure() -> None:
    """Write both down."""
    Path(os.environ[SESSION_VARIABLE]).write_text(json.dumps(_outcomes))


def functions_of(tree: ast.Module) -> Iterator[tuple[str, _FunctionNode]]:
    """Return the functions and methods of a module with their names, those inside of functions left out."""
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        prefix, node = waiting.pop(0)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _FunctionNode):
                yield prefix + child.name, child
            elif isinstance(child, ast.ClassDef):
                waiting.append((f"{prefix}{child.name}.", child))
            elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                waiting.append((prefix, child))


def with_statement(text: str, wanted: Collection[str] | None, statement: str) -> str:
    """Return a module in which functions begin with a statement, after their docstring.

    Args:
        text: the module.
        wanted: names of functions; None for all.
        statement: the text of it, in which `{name}` stands for the function's name.
    """
    tree = ast.parse(text)
    for name, node in functions_of(tree):
        if wanted is None or name in wanted:
            first = 1 if ast.get_docstring(node, clean=False) is not None else 0
            node.body[first:first] = ast.parse(statement.format(name=name)).body
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def rewrite(file: Path, path: str, wanted: Collection[str] | None = None) -> None:
    """Let functions of a file tell the oracle that they run."""
    call = f"__import__('affected_oracle').ran({path + '::'!r} + '{{name}}')"
    file.write_text(with_statement(file.read_text(), wanted, call))


def read(folder: Path) -> dict[str, set[str]]:
    """Return the tests that ran each function, as all processes of one run told."""
    found: dict[str, set[str]] = {}
    for file in folder.glob("*.json"):
        for name, tests in json.loads(file.read_text()).items():
            found.setdefault(name, set()).update(tests)
    return found
