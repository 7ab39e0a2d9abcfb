"""Whose use it is: the test or fixture that runs, the module that is being imported, the function that remembers.

A use inside a test is that test's. Code that runs once per process leaves no second trace for later tests, so
what it uses is learned for its file, and belongs to every test that imports the file:

- a module's own top level (`<module>`), and what runs while tests are collected;
- a function that remembers its result (`functools.cache`, a module-level variable or dict).
"""

from __future__ import annotations

import dis
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from seatrial.pytest_plugin.affected.child import CURRENT, TOKEN_BYTES, ChildLog
from seatrial.pytest_plugin.affected.watch import OUT, PY, Watch

Use = tuple[str, str]
"""Kind and name of something used."""
_HARNESS = tuple(f"{os.sep}{name}{os.sep}" for name in ("_pytest", "pluggy", "xdist", "coverage", "execnet"))
_OURSELVES = str(Path(__file__).parents[1]) + os.sep
_MAX_DEPTH = 400


class Frame(NamedTuple):
    """A frame of the project's code on the stack."""

    path: str
    code: CodeType
    frame: FrameType


@dataclass
class Window:
    """What was used while one test, or one fixture of wider scope, was running."""

    token: str
    uses: set[Use] = field(default_factory=set)
    loaded_by: set[str] = field(default_factory=set)
    """Files whose functions imported something by name during this window."""
    seen: set[tuple[str, str, int]] = field(default_factory=set)


class Windows:
    """Receives every use in this process, and keeps it where it belongs."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.watch = Watch(str(root), self.emit)
        self.learned: defaultdict[str, set[Use]] = defaultdict(set)
        """What importing a file, or calling what remembers in it, used; by file."""
        self.loads: defaultdict[str, set[str]] = defaultdict(set)
        """Files that functions of a file imported by name, by the importing file."""
        self.outputs: set[str] = set()
        """Files that were written."""
        self.by_token: dict[str, Window] = {}
        self._folder = folder
        self._stack: list[Window] = []
        self._process = os.getpid()
        self._child: ChildLog | None = None
        self._harness: dict[str, bool] = {}
        self._memories: dict[CodeType, bool] = {}
        os.register_at_fork(after_in_child=self._forked)

    @contextmanager
    def open(self, window: Window) -> Iterator[None]:
        """Let all uses be of `window` until the block ends; the window that was open goes on after it."""
        self.by_token[window.token] = window
        self._stack.append(window)
        self._tell(window.token)
        try:
            yield
        finally:
            self._stack.pop()
            self._tell(self._stack[-1].token if self._stack else "")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Watch nothing until the block ends: what selection itself reads is no test's."""
        was_active, self.watch.active = self.watch.active, False
        try:
            yield
        finally:
            self.watch.active = was_active

    def emit(self, kind: str, name: str, frame: FrameType | None) -> None:
        """Keep one use."""
        if self._child is not None:
            self._child.emit(kind, name, frame)
            return
        if kind == OUT:
            self.outputs.add(name)
            return
        window = self._stack[-1] if self._stack else None
        if window is not None and frame is not None:
            key = (kind, name, id(frame.f_code))
            if key in window.seen:
                return
            window.seen.add(key)
        self._keep(kind, name, frame, window)

    def called(self, filename: str) -> None:
        """Keep that a function of a file was called."""
        path = self.watch.relative(filename)
        if path is not None and self._stack and self._child is None:
            self._stack[-1].uses.add((PY, path))

    def _keep(self, kind: str, name: str, frame: FrameType | None, window: Window | None) -> None:
        frames = self._project_frames(frame)
        if frames is None:
            return
        if window is not None:
            window.uses.add((kind, name))
        importing = next((f for f in frames if f.code.co_name == "<module>"), None)
        if importing is not None:
            self.learned[importing.path].add((kind, name))
        elif window is None:
            if frames:
                self.learned[frames[-1].path].add((kind, name))
        elif kind == PY:
            if frames:
                self.loads[frames[0].path].add(name)
                window.loaded_by.add(frames[0].path)
        else:
            for one in frames:
                if self._remembers(one.frame):
                    self.learned[one.path].add((kind, name))

    def _remembers(self, frame: FrameType) -> bool:
        found = self._memories.get(frame.f_code)
        if found is None:
            found = self._memories[frame.f_code] = remembers(frame)
        return found

    def _project_frames(self, frame: FrameType | None) -> list[Frame] | None:
        """Return the project's frames, innermost first; None when the harness itself is the user."""
        frames: list[Frame] = []
        depth, is_first = 0, True
        while frame is not None and depth < _MAX_DEPTH:
            code = frame.f_code
            path = self.watch.relative(code.co_filename)
            if path is not None:
                frames.append(Frame(path, code, frame))
            if is_first and not code.co_filename.startswith("<") and not self._is_standard(code.co_filename):
                is_first = False
                if self._is_harness(code.co_filename):
                    return None
            frame, depth = frame.f_back, depth + 1
        return frames

    def _is_standard(self, filename: str) -> bool:
        return filename.startswith(self.watch.standard) and "site-packages" not in filename

    def _is_harness(self, filename: str) -> bool:
        found = self._harness.get(filename)
        if found is None:
            found = self._harness[filename] = filename.startswith(_OURSELVES) or any(
                part in filename for part in _HARNESS
            )
        return found

    def _tell(self, token: str) -> None:
        """Tell child processes what runs; one short write at one place, so that no reader sees half."""
        descriptor = os.open(self._folder / CURRENT, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, token.ljust(TOKEN_BYTES).encode(), 0)
        finally:
            os.close(descriptor)

    def _forked(self) -> None:
        """In a forked child uses go to its own log: its memory dies with it."""
        if self.watch.active:
            self._child = ChildLog(str(self._folder))


def remembers(frame: FrameType) -> bool:
    """Return whether a function keeps what it returns beyond its call, as far as can be told from its code.

    That is: it is wrapped by `functools.cache` or `lru_cache`, assigns a global variable, or stores into a
    container that it finds in a global variable.
    """
    code = frame.f_code
    wrapped = frame.f_globals.get(code.co_name)
    if hasattr(wrapped, "cache_info") and getattr(wrapped, "__wrapped__", None) is not None:
        return True
    previous: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_GLOBAL":
            return True
        if instruction.opname == "STORE_SUBSCR" and any(
            p.opname == "LOAD_GLOBAL" and isinstance(frame.f_globals.get(p.argval), dict)
            for p in previous[-4:]
        ):
            return True
        if instruction.opname not in ("CACHE", "NOP"):
            previous.append(instruction)
    return False
