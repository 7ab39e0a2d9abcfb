"""Detects which project files a process queries without opening them: `Path.exists`, `os.stat`, `os.access`.

Python has no audit event for these calls, so the functions of `os` are wrapped. Child processes load this module by its
path, like `watch`: it uses only the standard library.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

STAT: Final = "stat"
"""A path whose existence or type the process queried."""
FILE: Final = "file"
"""The same kind as in `watch`."""

_FUNCTIONS = ("stat", "lstat", "access")
_SETS = ("supports_dir_fd", "supports_fd", "supports_follow_symlinks", "supports_effective_ids")
_EXISTENCE = {"exists", "lexists", "is_file", "is_dir", "isfile", "isdir", "islink", "is_symlink", "access"}
_EXISTENCE |= {"mkdir", "makedirs", "samefile", "ismount", "is_mount", "which", "_access_check", "copystat"}
_RESOLVERS = {"_joinrealpath", "realpath", "resolve", "getcwd", "abspath"}
# These query the program's own source for a traceback or an import.
_READERS_OF_SOURCE = (
    "linecache",
    "inspect",
    "traceback",
    "tokenize",
    "pkgutil",
    "zipimport",
    "runpy",
    "site",
)

Emit = Callable[[str, str, "FrameType | None"], None]


class StatWatch:
    """Wraps the functions of `os` while a `Watch` is active."""

    def __init__(self, watch: Any, emit: Emit) -> None:
        self._watch = watch
        self._emit = emit
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Start."""
        for name in _FUNCTIONS:
            self._patch(name)

    def stop(self) -> None:
        """Restore the functions."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _patch(self, name: str) -> None:
        original: Any = getattr(os, name)
        watch, look, known = self._watch, self._look, self._watch.known

        @functools.wraps(original)
        def queried(path: Any, *more: Any, **named: Any) -> Any:
            if watch.active and "dir_fd" not in named and not isinstance(path, int):
                name = os.fspath(path) if hasattr(path, "__fspath__") else path
                # Most paths are known to be outside the project.
                if name.__class__ is not str or known.get(name, "") is not None:
                    watch.undisturbed(look, name, sys._getframe(1))
            return original(path, *more, **named)

        # The standard library looks up in these sets what a function supports.
        sets: list[set[Any]] = [getattr(os, kind) for kind in _SETS if original in getattr(os, kind, ())]
        for one in sets:
            one.add(queried)
            self._undo.append(functools.partial(one.discard, queried))
        setattr(os, name, queried)
        self._undo.append(functools.partial(setattr, os, name, original))

    def _look(self, path: Any, frame: FrameType | None) -> None:
        name = self._watch.relative(os.fsdecode(path))
        if name is None or name.endswith((".pyc", ".pyo")):
            return
        while frame is not None and frame.f_code.co_name in ("stat", "lstat") and self._is_standard(frame):
            frame = frame.f_back
        if frame is None or frame.f_code.co_name in _RESOLVERS:
            return
        user = frame
        if self._is_standard(frame) and frame.f_globals.get("__name__", "") in _READERS_OF_SOURCE:
            return
        self._emit(STAT, name, user)
        is_existence = frame.f_code.co_name in _EXISTENCE and self._is_standard(frame)
        # Size and times depend on the content; for code only what runs counts.
        if not is_existence and not name.endswith(".py") and os.path.isfile(path):  # noqa: PTH113
            self._emit(FILE, name, user)

    def _is_standard(self, frame: FrameType) -> bool:
        filename: str = frame.f_code.co_filename
        return filename.startswith((self._watch.standard, "<frozen"))
