"""Which files' functions ran, through `sys.monitoring` (Python 3.12 and later).

Each function reports its first call in a window and is then switched off until the next window: the cost is per
function, not per call. Python 3.11 has nothing of the kind (a profiler slows call-heavy tests 3 to 6 times), so
there the imports, static and by name, stand for what was executed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

_TOOL_NAME = "seatrial"
_TOOL_IDS = (4, 3)
"""Ids that Python leaves free (0 debugger, 1 coverage, 2 profiler, 5 optimizer)."""


class CallWatch:
    """Tells `called` the file of every function that is called for the first time since `restart`."""

    def __init__(self, called: Callable[[str], None]) -> None:
        self._called = called
        self._tool: int | None = None

    def start(self) -> bool:
        """Begin; False where Python cannot, or other tools hold every id."""
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is None:
            return False
        free = [number for number in _TOOL_IDS if monitoring.get_tool(number) is None]
        if not free:
            return False
        self._tool = free[0]
        monitoring.use_tool_id(self._tool, _TOOL_NAME)
        monitoring.register_callback(self._tool, monitoring.events.PY_START, self._started)
        monitoring.set_events(self._tool, monitoring.events.PY_START)
        return True

    def restart(self) -> None:
        """Let every function report its next call again."""
        if self._tool is not None:
            monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
            monitoring.restart_events()

    def stop(self) -> None:
        """Give the id back."""
        if self._tool is not None:
            monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
            monitoring.set_events(self._tool, 0)
            monitoring.free_tool_id(self._tool)
            self._tool = None

    def _started(self, code: CodeType, offset: int) -> Any:
        self._called(code.co_filename)
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        return monitoring.DISABLE
