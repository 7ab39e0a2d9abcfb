"""Which lines of refrl a run executes, and which of them a planted fault changes.

`recording` gives the variables under which the processes of a run record their lines (`line_recorder/`), and
`read_lines` reads what they left. `lines_of` returns the lines of a fault: a run that executes one of them executes the
fault.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType

import refrl
import seatrial
from seatrial.faults.plant import source_path
from seatrial.faults.planting import SCRIPTS, Change, changed_source

PACKAGE = Path(refrl.__file__).parent
OBSERVERS = Path(seatrial.__file__).parent
RECORDER = Path(__file__).parent / "line_recorder"

Lines = Mapping[str, Sequence[int]]
"""Numbers of lines by the path of a module below the package."""


def recording(folder: Path) -> dict[str, str]:
    """Return the variables under which Python processes record the lines of refrl into a folder."""
    paths = [str(RECORDER), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "SEATRIAL_LINES_OF": str(PACKAGE),
        "SEATRIAL_LINES_TO": str(folder),
        "SEATRIAL_LINES_NOT_BY": str(OBSERVERS),
    }


def read_lines(folder: Path) -> dict[str, list[int]]:
    """Return the lines that any process recorded; what a killed process left incomplete is left out."""
    found: dict[str, set[int]] = defaultdict(set)
    for path in folder.glob("*.txt"):
        for line in path.read_text().splitlines():
            name, _, number = line.rpartition(":")
            if name and number.isdecimal():
                found[name].add(int(number))
    return {name: sorted(lines) for name, lines in sorted(found.items())}


def digest_of_sources() -> str:
    """Return a digest of refrl's sources: a record is of these lines and of no others."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def executes(lines: Lines, wanted: Lines) -> bool:
    """Return whether a run with these lines executes one of those wanted."""
    return any(not {*numbers}.isdisjoint(lines.get(name, ())) for name, numbers in wanted.items())


def lines_of(change: Change) -> dict[str, list[int]]:
    """Return the lines of a fault: for a module that is run as a file, those that start it."""
    module, attribute = SCRIPTS.get(change.module, (change.module, ""))
    path = source_path(module, PACKAGE)
    source = path.read_text(encoding="utf-8")
    lines = (
        _reading(source, attribute) if attribute else changed_lines(source, changed_source(source, change))
    )
    return {str(path.relative_to(PACKAGE)): sorted(lines)}


def changed_lines(source: str, changed: str) -> set[int]:
    """Return the lines by whose execution a change of a source is reached.

    A changed line counts as itself where it has code, and for its statement where it has none. What is inserted is
    reached by the line before it, an argument's default by the body of its function, and a constant of the module by
    the lines that read it, where the module has any.
    """
    old = source.splitlines()
    touched: set[int] = set()
    for kind, start, end, *_ in difflib.SequenceMatcher(
        None, old, changed.splitlines(), autojunk=False
    ).get_opcodes():
        if kind == "insert":
            before = [number for number in range(1, start + 1) if old[number - 1].strip()]
            touched.update(before[-1:])
        elif kind != "equal":
            touched.update(number for number in range(start + 1, end + 1) if old[number - 1].strip())
    tree = ast.parse(source)
    with_code = set(_lines_with_code(compile(source, "module", "exec")))
    return {line for number in touched for line in _reached_by(tree, source, number, with_code)}


def _lines_with_code(code: CodeType) -> Iterator[int]:
    yield from (line for _, _, line in code.co_lines() if line)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines_with_code(constant)


def _reached_by(tree: ast.Module, source: str, number: int, with_code: set[int]) -> set[int]:
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and _first(node) <= number <= (node.end_lineno or 0)
    ]
    if not around:
        return set()
    statement = max(around, key=_first)
    if len(around) == 1 and isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        reading = {
            line
            for target in targets
            if isinstance(target, ast.Name)
            for line in _reading(source, target.id)
            if line in with_code
        }
        return reading or {number}
    body = getattr(statement, "body", None)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return {line for line in with_code if statement.body[0].lineno <= line <= (statement.end_lineno or 0)}
    if number in with_code:
        return {number}
    if body is None:
        return {line for line in with_code if _first(statement) <= line <= (statement.end_lineno or 0)}
    # A header of several lines, or `else:`: the next line that has code.
    return {min((line for line in with_code if line > number), default=number)}


def _first(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _reading(source: str, name: str) -> set[int]:
    """Return the lines of a source that read a name."""
    return {
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    }
