"""For Python 3.11: compiles a file of the project so that each of its functions reports that it runs.

Python 3.12 has `sys.monitoring` for this (`calls`); a profiler would slow call-heavy tests 3 to 6 times. Here a
function's first instruction adds its name to a set, at about 40 ns a call. Names, lines, signatures and docstrings are
those of the source; nothing is written to Python's caches.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from importlib.abc import InspectLoader
from types import CodeType
from typing import Any, NamedTuple

from seatrial.pytest_plugin.affected.collector import paused_collector
from seatrial.pytest_plugin.affected.functions import FunctionNode, definitions_in, functions, walk
from seatrial.pytest_plugin.affected.parsing import parse
from seatrial.pytest_plugin.affected.parts import digest
from seatrial.pytest_plugin.affected.sources import keepers_of, read_compiled

_RAN, _ENTER, _LEAVE = "ran", "enter", "leave"
_MARK = "seatrial probe"


class Probes(NamedTuple):
    """Callbacks of the compiled functions."""

    ran: Callable[[str], None]
    enter: Callable[[str], None]
    """A function that keeps a result begins."""
    leave: Callable[[str], None]


def compile_with_probes(content: bytes, filename: str, path: str, probes: Probes) -> CodeType:
    """Compile a module.

    Args:
        content: its source.
        filename: for tracebacks.
        path: its path in the project.
        probes: the callbacks of its functions; they receive `path::name`.

    Raises:
        SyntaxError: it is not Python.
        ValueError: it contains null bytes.
        RecursionError: it is nested too deeply.
    """
    with paused_collector(), warnings.catch_warnings():
        # The compiler warns that the placeholders of the probes are not callable.
        warnings.simplefilter("ignore")
        tree = parse(content, filename)
        read_compiled(content, tree)
        keeping = keepers_of(digest(content), tree).names
        lines = content.splitlines()
        for name, node in functions(tree.body):
            _add_probes(node, f"{path}::{name}", keeps=name in keeping)
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if any(b"lambda" in line for line in lines[first - 1 : node.end_lineno]):
                _add_to_lambdas(node, f"{path}::{name}")
        # As the import system compiles a module; it accepts a tree as well as a source.
        code = InspectLoader.source_to_code(tree, filename)
    return _bound(code, probes)


def _add_probes(node: FunctionNode, name: str, *, keeps: bool) -> None:
    for child in definitions_in(node):
        first = 1 if ast.get_docstring(child, clean=False) is not None else 0
        place: ast.stmt = child.body[min(first, len(child.body) - 1)]
        if keeps and child is node:
            inner = child.body[first:] or [ast.copy_location(ast.Pass(), place)]
            leave = _call(_LEAVE, name, place)
            wrapped = ast.copy_location(ast.Try(inner, [], [], [leave]), place)
            child.body[first:] = [_call(_ENTER, name, place), wrapped]
        else:
            child.body.insert(first, _call(_RAN, name, place))


def _add_to_lambdas(node: FunctionNode, name: str) -> None:
    for child in walk(node):
        if isinstance(child, ast.Lambda):
            ran = _call(_RAN, name, child).value
            child.body = ast.copy_location(ast.BoolOp(ast.Or(), [ran, child.body]), child)


def _call(kind: str, name: str, like: ast.stmt | ast.expr) -> ast.Expr:
    """Return a call of a probe at the position of the code that follows it."""
    place: dict[str, Any] = {
        "lineno": like.lineno,
        "col_offset": like.col_offset,
        "end_lineno": like.lineno,
        "end_col_offset": like.col_offset,
    }
    # The compiler treats the tuple as a constant; it is replaced by the probe afterwards.
    mark: Any = (_MARK, kind)
    called = ast.Call(
        func=ast.Constant(value=mark, **place),
        args=[ast.Constant(value=name, **place)],
        keywords=[],
        **place,
    )
    return ast.Expr(value=called, **place)


def _bound(code: CodeType, probes: Probes) -> CodeType:
    """Replace the placeholders by the probes, in a code object and those inside it."""
    constants: list[Any] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constants.append(_bound(constant, probes))
        elif isinstance(constant, tuple) and len(constant) == 2 and constant[0] == _MARK:
            constants.append(getattr(probes, constant[1]))
        else:
            constants.append(constant)
    return code.replace(co_consts=tuple(constants))
