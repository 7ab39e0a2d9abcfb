"""Detects through `sys.monitoring` (Python 3.12 and later) which functions of the project run.

Only the project's own code is monitored. Each function reports its first call in a scope and is then disabled until
the next scope: the cost is per function, not per call.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

from seatrial.pytest_plugin.affected.probes import Probes

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
        self._keeping: dict[int, str] = {}

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

    def add(self, code: CodeType, path: str, keeping: frozenset[str]) -> None:
        """Monitor the functions of a module's code.

        Args:
            code: of the module.
            path: of its file in the project.
            keeping: names of functions that keep a result beyond their call.
        """
        if self._tool is None:
            return
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        events = monitoring.events
        for inner in _functions_in(code):
            name = inner.co_qualname.partition(".<locals>")[0]
            self._names[id(inner)] = (inner, f"{path}::{name}")
            wanted = events.PY_START
            if inner.co_qualname in keeping:
                self._keeping[id(inner)] = f"{path}::{name}"
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
            self._probes.enter(keeping)
            return None
        known = self._names.get(id(code))
        if known is not None:
            self._probes.ran(known[1])
        return monitoring.DISABLE

    def _ended(self, code: CodeType, offset: int, value: Any) -> None:
        keeping = self._keeping.get(id(code))
        if keeping is not None:
            self._probes.leave(keeping)


def _functions_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of functions at any depth, without class bodies and comprehensions at module level."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            is_function = bool(constant.co_flags & 0x2) and not constant.co_name.startswith("<")
            if is_function or ".<locals>" in constant.co_qualname:
                yield constant
            yield from _functions_in(constant)
