"""Detects tests that call Ray: their functions run in workers, which cannot be watched in a cluster of someone else.

Ray is never imported from here. The workers of a cluster that was started inside the session inherit its environment
and report what they use; those of another cluster do not, and a test that calls them always runs.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from seatrial.pytest_plugin.affected.watch import TOKEN_VARIABLE, UNWATCHED
from seatrial.pytest_plugin.affected.windows import Windows

_CALLERS = {"ray.actor": ("ActorMethod", "ActorClass"), "ray.remote_function": ("RemoteFunction",)}
"""Classes whose `_remote` every call of an actor or task goes through, by module."""


class RayUse:
    """Records which tests call Ray."""

    def __init__(self, windows: Windows, folder: Path) -> None:
        self._windows = windows
        self._folder = folder
        self._watched: dict[str, bool] = {}
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Start, whether Ray is already imported or will be."""
        for name in _CALLERS:
            self._windows.runs.after_import[name] = self._patch
            if name in sys.modules:
                self._patch(sys.modules[name])

    def stop(self) -> None:
        """Restore Ray's methods."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _patch(self, module: ModuleType) -> None:
        for name in _CALLERS[module.__name__]:
            owner: Any = getattr(module, name, None)
            original = getattr(owner, "_remote", None)
            if original is None:
                continue

            @functools.wraps(original)
            def remote(caller: Any, *values: Any, _original: Any = original, **named: Any) -> Any:
                self._called()
                return _original(caller, *values, **named)

            owner._remote = remote
            self._undo.append(functools.partial(setattr, owner, "_remote", original))

    def _called(self) -> None:
        if not self._windows.watch.active or os.getpid() != self._windows.process:
            return
        window = self._windows.current
        window.hides = True
        ray: Any = sys.modules["ray"]
        if not ray.is_initialized():  # the call itself starts a cluster inside the session
            return
        node = getattr(sys.modules["ray._private.worker"].global_worker, "node", None)
        address = str(getattr(node, "gcs_address", "a Ray client"))
        if address not in self._watched:
            with self._windows.paused():
                self._watched[address] = node is not None and all(map(self._is_ours, ray.nodes()))
        if not self._watched[address]:
            window.uses.add((UNWATCHED, f"the Ray cluster at {address}"))

    def _is_ours(self, node: dict[str, Any]) -> bool:
        """Return whether the processes of a node inherit this session's environment."""
        socket = str(node.get("RayletSocketName", ""))
        return not node.get("Alive") or _has_process(socket, f"{TOKEN_VARIABLE}={self._folder}")


def _has_process(word: str, variable: str) -> bool:
    """Return whether a process of this machine has a word in its command line and a variable in its environment."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (entry / "cmdline").read_bytes():
                variables = (entry / "environ").read_bytes().split(b"\0")
                if variable.encode() in variables:
                    return True
        except OSError:  # it exited, or is not readable
            continue
    return False
