"""Records which functions of the project ran, and in which scope: a test, a fixture, an import, or a function that
keeps results.

On Python 3.12 and later `calls` reports them, before that the probes that `probes` compiles into the project's modules.
Both report the same names.
"""

# ruff: noqa: PTH123

from __future__ import annotations

import functools
import importlib.machinery
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import CodeType, ModuleType
from typing import Any

from seatrial.pytest_plugin.affected.calls import CallWatch, Probes, compile_with_probes
from seatrial.pytest_plugin.affected.sources import keepers_of, read_compiled, splits
from seatrial.pytest_plugin.affected.syntax import CANNOT_PARSE, digest, parse


class Runs:
    """Collects the functions that ran, by scope.

    Args:
        relative: returns the path of a file in the project.
        with_probes: whether modules may be compiled with probes if Python has no `sys.monitoring`.
    """

    def __init__(self, relative: Callable[[str], str | None], *, with_probes: bool = True) -> None:
        self._relative = relative
        self._with_probes = with_probes
        self._now: set[str] = set()
        """Functions that ran since the last call of `_mark`."""
        self._earlier: set[str] = set()
        """Functions that ran before it in the current scope."""
        self._outer: list[set[str]] = []
        self._suspended: dict[str, tuple[int, set[str]]] = {}
        """Active generators and coroutines that keep a result: how many of each, and what ran since they began."""
        self._keeping: list[tuple[str, set[str]]] = []
        self._thread = get_ident()
        self._undo: list[Callable[[], None]] = []
        self._probes = Probes(self._now.add, self._enter, self._leave, self._begin, self._finish)
        self._calls = CallWatch(self._probes)
        self._monitors = False
        self.tracked: set[str] = set()
        """Files whose functions report that they run."""
        self.under: defaultdict[str, set[str]] = defaultdict(set)
        """Functions that ran while a file was imported, or below one of its functions that keep results; by file."""
        self.after_import: dict[str, Callable[[ModuleType], None]] = {}
        """Called after a module of this name has been imported."""
        self.active = False

    def start(self) -> None:
        """Start, before the project is imported."""
        self.active = True
        self._monitors = self._calls.start()
        loader: Any = importlib.machinery.SourceFileLoader
        self._wrap(loader, "exec_module", self._importing)
        if not self._monitors and self._with_probes:
            self._wrap(loader, "get_code", self._compiling)
        from _pytest.assertion.rewrite import AssertionRewritingHook

        self._wrap(AssertionRewritingHook, "exec_module", self._importing)

    def stop(self) -> None:
        """Stop; modules that were compiled with probes keep them, without effect."""
        self.active = False
        self._calls.stop()
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def executing(self, code: CodeType, path: str) -> None:
        """Watch the functions of a module that is about to be executed."""
        if not self._monitors or splits(path):
            return
        content = _read(code.co_filename)
        if content is not None:
            try:
                tree = parse(content)
            except CANNOT_PARSE:  # it changed since it was read
                return
            read_compiled(content, tree)
            self._calls.add(code, path, keepers_of(digest(content), tree))
            self.tracked.add(path)

    def begin(self) -> None:
        """Open a scope inside the current one."""
        self._mark()
        self._outer.append(self._earlier)
        self._earlier = set()

    def end(self) -> set[str]:
        """Close the innermost scope, and return the functions that ran in it only."""
        self._mark()
        found, self._earlier = self._earlier, self._outer.pop()
        return found

    @contextmanager
    def of_file(self, path: str) -> Iterator[None]:
        """Attribute everything that runs in the block to the import of a file."""
        if get_ident() != self._thread or not self.active:
            yield
            return
        self.begin()
        try:
            yield
        finally:
            self.under[path] |= self.end()

    def outside(self) -> set[str]:
        """Return what ran outside all scopes, at the end of the session."""
        self._mark()
        for name, (_, ran) in self._suspended.items():
            self.under[name.partition("::")[0]] |= ran
        return self._outer[0] if self._outer else self._earlier

    def _mark(self) -> None:
        """Move what ran until now to the current scope, and to the active generators and coroutines."""
        self._earlier |= self._now
        for _, ran in list(self._suspended.values()):
            ran |= self._now
        self._now.clear()
        self._calls.restart()

    def _enter(self, name: str) -> None:
        if get_ident() == self._thread and self.active:
            self.begin()
            self._keeping.append((name, set()))
        self._now.add(name)

    def _leave(self, name: str) -> None:
        if get_ident() != self._thread or not self._keeping or self._keeping[-1][0] != name:
            return
        self._keeping.pop()
        found = self.end()
        self.under[name.partition("::")[0]] |= found
        # The test that ran first ran them too.
        self._earlier |= found

    def _begin(self, name: str) -> None:
        # Other functions run between its steps: all that run until it ends count for its file.
        if self.active:
            known = set()
            if get_ident() == self._thread:
                self._mark()
            else:  # another thread cannot change the scope
                known = self._earlier | self._now
            count, ran = self._suspended.get(name, (0, set[str]()))
            self._suspended[name] = (count + 1, ran | known)
        self._now.add(name)

    def _finish(self, name: str) -> None:
        if get_ident() == self._thread and name in self._suspended:
            self._mark()
            count, ran = self._suspended.pop(name)
            self.under[name.partition("::")[0]] |= ran
            if count > 1:
                self._suspended[name] = (count - 1, ran)

    def _wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        own = vars(owner).get(name)
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(loader: Any, argument: Any) -> Any:
            __tracebackhide__ = True
            return wrapper(original, loader, argument)

        setattr(owner, name, wrapped)
        restore = functools.partial(delattr, owner, name)
        self._undo.append(restore if own is None else functools.partial(setattr, owner, name, own))

    def _importing(self, original: Callable[..., Any], loader: Any, module: ModuleType) -> None:
        __tracebackhide__ = True
        file = getattr(getattr(module, "__spec__", None), "origin", None)
        path = self._relative(file) if isinstance(file, str) else None
        if path is None:
            original(loader, module)
            if module.__name__ in self.after_import:
                self.after_import[module.__name__](module)
            return
        with self.of_file(path):
            original(loader, module)

    def _compiling(self, original: Callable[..., Any], loader: Any, fullname: str) -> Any:
        __tracebackhide__ = True
        filename = loader.get_filename(fullname)
        path = self._relative(filename)
        content = _read(filename) if path is not None and filename.endswith(".py") else None
        if path is None or content is None or splits(path):
            return original(loader, fullname)
        try:
            code = compile_with_probes(content, filename, path, self._probes)
        except CANNOT_PARSE:
            # The import itself reports the error.
            return original(loader, fullname)
        self.tracked.add(path)
        return code


def _read(filename: str) -> bytes | None:
    try:
        with open(filename, "rb") as file:
            return file.read()
    except OSError:
        return None
