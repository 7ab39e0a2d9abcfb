"""Attributes each use to the test or fixture that runs, the module that is being imported, or the function that keeps
its result.

A use during a test is that test's. Code that runs once per process leaves no trace for later tests, so its uses are
learned for its file, and count for every test that imports the file:

- a module's top level (`<module>`), and everything that runs while tests are collected;
- a function that keeps its result (`functools.cache`, a module-level variable or dict).
"""

from __future__ import annotations

import dis
import functools
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from seatrial.pytest_plugin.affected.child import CURRENT, TOKEN_BYTES, ChildLog
from seatrial.pytest_plugin.affected.runs import Runs
from seatrial.pytest_plugin.affected.stats import StatWatch
from seatrial.pytest_plugin.affected.watch import OUT, PY, Watch

Use = tuple[str, str]
"""Kind and name of something that was used."""
_HARNESS = tuple(f"{os.sep}{name}{os.sep}" for name in ("_pytest", "pluggy", "xdist", "coverage", "execnet"))
_OURSELVES = str(Path(__file__).parents[1]) + os.sep
_MAX_DEPTH = 400
_KEEPING_INSTRUCTIONS = frozenset((dis.opmap["STORE_GLOBAL"], dis.opmap["STORE_SUBSCR"]))


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
    ran: set[str] = field(default_factory=set)
    """Functions of the project that were called, as `path::name`."""
    child_uses: set[Use] = field(default_factory=set)
    """What other processes used."""
    hides: bool = False
    """Whether another process may have run functions unobserved: a fork, a Ray worker."""
    loaded_by: set[str] = field(default_factory=set)
    """Files whose functions imported something by name during this window."""
    seen: set[tuple[str, str, int]] = field(default_factory=set)


class Windows:
    """Receives every use in this process, and attributes it."""

    def __init__(self, root: Path, folder: Path, *, with_probes: bool = True) -> None:
        self.watch = Watch(str(root), self.emit, self._executing)
        self.runs = Runs(self.watch.relative, with_probes=with_probes)
        self._stats = StatWatch(self.watch, self.emit)
        self.learned: defaultdict[str, set[Use]] = defaultdict(set)
        """What importing a file, or calling its functions that keep results, used; by file."""
        self.loads: defaultdict[str, set[str]] = defaultdict(set)
        """Files that functions of a file imported by name, by the importing file."""
        self.outputs: set[str] = set()
        """Files that were written."""
        self.by_token: dict[str, Window] = {}
        self.executed: set[str] = set()
        """Python files whose code ran in this process."""
        self.outside = Window("")
        """What was used before the first test and between tests."""
        self._folder = folder
        self._current = os.open(folder / CURRENT, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._stack: list[Window] = []
        self.process = os.getpid()
        self._child: ChildLog | None = None
        self._keeping: dict[CodeType, bool] = {}
        os.register_at_fork(after_in_child=self._forked, after_in_parent=self._has_forked)

    def start(self) -> None:
        """Start watching."""
        self.runs.start()
        self.watch.start()
        self._stats.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stats.stop()
        self.watch.stop()
        self.runs.stop()
        os.close(self._current)

    @property
    def current(self) -> Window:
        """The window of what runs now."""
        return self._stack[-1] if self._stack else self.outside

    @contextmanager
    def open(self, window: Window) -> Iterator[None]:
        """Attribute all uses in the block to `window`; afterwards the outer window is open again."""
        self.by_token[window.token] = window
        self._stack.append(window)
        self._announce(window.token)
        self.runs.begin()
        try:
            yield
        finally:
            window.ran |= self.runs.end()
            self._stack.pop()
            self._announce(self._stack[-1].token if self._stack else "")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend watching in the block: what the selection itself reads is no use of a test."""
        was_active, self.watch.active = self.watch.active, False
        try:
            yield
        finally:
            self.watch.active = was_active

    def emit(self, kind: str, name: str, frame: FrameType | None) -> None:
        """Attribute one use."""
        if self._child is not None:
            self._child.emit(kind, name, frame)
            return
        if kind == OUT:
            self.outputs.add(name)
            return
        window = self._stack[-1] if self._stack else None
        user = self._user(frame)
        if user is not None and _is_harness(user.f_code.co_filename):
            return
        if window is not None and user is not None:
            key = (kind, name, id(user.f_code))
            if key in window.seen:
                return
            window.seen.add(key)
        self._keep(kind, name, frame, window)

    def _keep(self, kind: str, name: str, frame: FrameType | None, window: Window | None) -> None:
        frames = self._project_frames(frame)
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
                if self._keeps(one.frame):
                    self.learned[one.path].add((kind, name))

    def _keeps(self, frame: FrameType) -> bool:
        found = self._keeping.get(frame.f_code)
        if found is None:
            found = self._keeping[frame.f_code] = keeps_result(frame)
        return found

    def _user(self, frame: FrameType | None) -> FrameType | None:
        """Return the innermost frame outside the standard library and the interpreter."""
        while frame is not None:
            filename = frame.f_code.co_filename
            if not filename.startswith("<") and not self._is_standard(filename):
                return frame
            frame = frame.f_back
        return None

    def _project_frames(self, frame: FrameType | None) -> list[Frame]:
        """Return the project's frames, innermost first."""
        frames: list[Frame] = []
        depth, known = 0, self.watch.known
        while frame is not None and depth < _MAX_DEPTH:
            code = frame.f_code
            path = known.get(code.co_filename, "")
            if path == "":
                path = self.watch.relative(code.co_filename)
            if path is not None:
                frames.append(Frame(path, code, frame))
            frame, depth = frame.f_back, depth + 1
        return frames

    def _is_standard(self, filename: str) -> bool:
        return filename.startswith(self.watch.standard) and "site-packages" not in filename

    def _announce(self, token: str) -> None:
        """Announce to child processes which test runs; one short write in place, so that no reader sees half of it."""
        os.pwrite(self._current, token.ljust(TOKEN_BYTES).encode(), 0)

    def _executing(self, code: CodeType, path: str) -> None:
        self.executed.add(path)
        self.runs.executing(code, path)

    def _has_forked(self) -> None:
        if self.watch.active:
            self.current.hides = True

    def _forked(self) -> None:
        """Write uses in a forked child to its own log, because its memory is lost when it exits."""
        if self.watch.active:
            self._child = ChildLog(str(self._folder))


@functools.cache
def _is_harness(filename: str) -> bool:
    return filename.startswith(_OURSELVES) or any(part in filename for part in _HARNESS)


def keeps_result(frame: FrameType) -> bool:
    """Return whether a function keeps its result beyond its call, as far as its code shows.

    That is: `functools.cache` or `lru_cache` wraps it, it assigns a global variable, or it stores into a container in a
    global variable.
    """
    code = frame.f_code
    wrapped = frame.f_globals.get(code.co_name)
    if hasattr(wrapped, "cache_info") and getattr(wrapped, "__wrapped__", None) is not None:
        return True
    # Most functions have neither instruction, and disassembling a function takes a hundred times as long.
    if _KEEPING_INSTRUCTIONS.isdisjoint(code.co_code[::2]):
        return False
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
