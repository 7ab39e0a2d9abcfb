"""Detects which functions of the project run.

On Python 3.12 and later `CallWatch` uses `sys.monitoring`: each function reports its first call in a scope and is then
disabled until the next scope, so the cost is per function, not per call. On Python 3.11, where a profiler would slow
call-heavy tests 3 to 6 times, a file is compiled so that each function's first instruction adds its name to a set, at
about 40 ns a call. Names, lines, signatures and docstrings are those of the source; nothing is written to Python's
caches.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.abc import InspectLoader
from types import CodeType
from typing import Any, NamedTuple

from seatrial.collector import paused_collector
from seatrial.pytest_plugin.affected.keepers import Keepers
from seatrial.pytest_plugin.affected.sources import keepers_of, read_compiled
from seatrial.pytest_plugin.affected.syntax import (
    FunctionNode,
    definitions_in,
    digest,
    functions,
    parse,
    walk,
)

_MARK = "seatrial probe"


class Probes(NamedTuple):
    """Callbacks of the compiled functions."""

    ran: Callable[[str], None]
    enter: Callable[[str], None]
    """A function that keeps a result begins."""
    leave: Callable[[str], None]
    begin: Callable[[str], None]
    """A generator or coroutine that keeps a result begins; other functions run between its steps."""
    finish: Callable[[str], None]


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
        keeping = keepers_of(digest(content), tree)
        lines = content.splitlines()
        for name, node in functions(tree.body):
            around = _AROUND.get((name in keeping.names, name in keeping.suspended))
            _add_probes(node, f"{path}::{name}", around)
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if any(b"lambda" in line for line in lines[first - 1 : node.end_lineno]):
                _add_to_lambdas(node, f"{path}::{name}")
        # As the import system compiles a module; it accepts a tree as well as a source.
        code = InspectLoader.source_to_code(tree, filename)
    return _bound(code, probes)


_AROUND = {(True, False): ("enter", "leave"), (False, True): ("begin", "finish")}
"""Probes at the start and end of a function, by (keeps a result, can pause)."""


def _add_probes(node: FunctionNode, name: str, around: tuple[str, str] | None) -> None:
    for child in definitions_in(node):
        first = 1 if ast.get_docstring(child, clean=False) is not None else 0
        place: ast.stmt = child.body[min(first, len(child.body) - 1)]
        if around is not None and child is node:
            inner = child.body[first:] or [ast.copy_location(ast.Pass(), place)]
            last = _call(around[1], name, place)
            wrapped = ast.copy_location(ast.Try(inner, [], [], [last]), place)
            child.body[first:] = [_call(around[0], name, place), wrapped]
        else:
            child.body.insert(first, _call("ran", name, place))


def _add_to_lambdas(node: FunctionNode, name: str) -> None:
    for child in walk(node):
        if isinstance(child, ast.Lambda):
            ran = _call("ran", name, child).value
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


_TOOL_NAME = "seatrial"
_TOOL_IDS = (4, 3)
"""Ids without an assigned use (0 debugger, 1 coverage, 2 profiler, 5 optimizer)."""


class CallWatch:
    """Reports to `probes` every function that is called for the first time since `restart`."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        self._tool: int | None = None
        # Code objects compare by content, but two functions with equal bodies are different functions.
        self._names: dict[int, tuple[CodeType, str]] = {}
        self._keeping: dict[int, tuple[str, Callable[[str], None], Callable[[str], None]]] = {}

    def start(self) -> bool:
        """Start; return False if Python does not support it, or other tools hold all ids."""
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is None:
            return False
        free = [number for number in _TOOL_IDS if monitoring.get_tool(number) is None]
        if not free:
            return False
        self._tool = free[0]
        events = monitoring.events
        monitoring.use_tool_id(self._tool, _TOOL_NAME)
        monitoring.register_callback(self._tool, events.PY_START, self._started)
        monitoring.register_callback(self._tool, events.PY_RETURN, self._ended)
        monitoring.register_callback(self._tool, events.PY_UNWIND, self._ended)
        return True

    def add(self, code: CodeType, path: str, keeping: Keepers) -> None:
        """Monitor the functions of a module's code.

        Args:
            code: of the module.
            path: of its file in the project.
            keeping: the functions that keep a result beyond their call.
        """
        if self._tool is None:
            return
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        events = monitoring.events
        for inner in _functions_in(code):
            name = inner.co_qualname.partition(".<locals>")[0]
            self._names[id(inner)] = (inner, f"{path}::{name}")
            wanted = events.PY_START
            if inner.co_qualname in keeping.names | keeping.suspended:
                waits = inner.co_qualname in keeping.suspended
                start = self._probes.begin if waits else self._probes.enter
                end = self._probes.finish if waits else self._probes.leave
                self._keeping[id(inner)] = (f"{path}::{name}", start, end)
                wanted |= events.PY_RETURN
                monitoring.set_events(self._tool, events.PY_UNWIND)
            monitoring.set_local_events(self._tool, inner, wanted)

    def restart(self) -> None:
        """Make every function report its next call again."""
        if self._tool is not None:
            monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
            monitoring.restart_events()

    def stop(self) -> None:
        """Stop, and release the id."""
        if self._tool is not None:
            monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
            monitoring.set_events(self._tool, 0)
            for code, _ in self._names.values():
                monitoring.set_local_events(self._tool, code, 0)
            monitoring.free_tool_id(self._tool)
            self._tool = None

    def _started(self, code: CodeType, offset: int) -> Any:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        keeping = self._keeping.get(id(code))
        if keeping is not None:
            name, start, _ = keeping
            start(name)
            return None
        known = self._names.get(id(code))
        if known is not None:
            self._probes.ran(known[1])
        return monitoring.DISABLE

    def _ended(self, code: CodeType, offset: int, value: Any) -> None:
        keeping = self._keeping.get(id(code))
        if keeping is not None:
            name, _, end = keeping
            end(name)


def _functions_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of functions at any depth, without class bodies and comprehensions at module level."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            is_function = bool(constant.co_flags & 0x2) and not constant.co_name.startswith("<")
            if is_function or ".<locals>" in constant.co_qualname:
                yield constant
            yield from _functions_in(constant)
