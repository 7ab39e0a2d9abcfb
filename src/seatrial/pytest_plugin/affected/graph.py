"""Transitive imports inside the project: through packages, relative imports and re-exports, without importing."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from seatrial.pytest_plugin.affected.sources import Import
from seatrial.pytest_plugin.affected.watch import FILE, PY
from seatrial.pytest_plugin.affected.windows import Use

_EMPTY: frozenset[str] = frozenset()


@dataclass
class Reach:
    """What some code can reach."""

    files: set[str] = field(default_factory=set)
    """Python files, relative to the project."""
    outside: set[str] = field(default_factory=set)
    """Top-level modules from outside of the project."""
    other: set[Use] = field(default_factory=set)
    """What is no Python file: files that an import looked for in vain, and what was learned for files reached."""

    def add(self, more: Reach) -> None:
        """Take over what `more` reaches."""
        self.files |= more.files
        self.outside |= more.outside
        self.other |= more.other


class ImportGraph:
    """Resolves imports to files of the project.

    Args:
        root: the project.
        search: folders that absolute imports start from, relative to the project (`""`, `src`, ...).
        modules: files of the modules that were really imported, by name; they go before a search.
        imports_of: returns the imports of a Python file.
        learned: what importing a file used, by file (see `windows`).
        loads: files that functions of a file imported by name, by the importing file.
    """

    def __init__(
        self,
        root: Path,
        *,
        search: Iterable[str],
        modules: Mapping[str, str],
        imports_of: Callable[[str], tuple[Import, ...]],
        learned: Mapping[str, Set[Use]],
        loads: Mapping[str, Set[str]],
    ) -> None:
        self._root = root
        self._search = list(dict.fromkeys(search))
        self._modules = modules
        self._imports_of = imports_of
        self._learned = learned
        self._loads = loads
        self._direct: dict[str, Reach] = {}
        self._is_file: dict[str, bool] = {}
        self._is_folder: dict[str, bool] = {}

    def reach(self, start: Reach, loaded_by: Set[str] = _EMPTY) -> Reach:
        """Return all that is reached from the files of `start`, itself included.

        Args:
            start: direct imports of a test.
            loaded_by: files whose imports by name the test did itself; for others, all that they ever imported
                counts, for they may have done it once for every test.
        """
        total = Reach(set(), set(start.outside), set(start.other))
        waiting = list(start.files)
        while waiting:
            file = waiting.pop()
            if file in total.files:
                continue
            total.files.add(file)
            direct = self._direct_of(file)
            total.outside |= direct.outside
            total.other |= direct.other
            waiting.extend(direct.files - total.files)
            if file not in loaded_by:
                waiting.extend(self._loads.get(file, _EMPTY) - total.files)
        return total

    def _direct_of(self, file: str) -> Reach:
        found = self._direct.get(file)
        if found is None:
            found = self.direct(self._imports_of(file), file)
            found.add(self.learned_of(file))
            # Importing a module runs the packages above it.
            found.files |= set(self._packages_above(file))
            found.files.discard(file)
            self._direct[file] = found
        return found

    def learned_of(self, file: str) -> Reach:
        """Return what importing a file was seen to use."""
        uses = self._learned.get(file, frozenset())
        return Reach(
            {name for kind, name in uses if kind == PY}, set(), {use for use in uses if use[0] != PY}
        )

    def direct(self, imports: Iterable[Import], importer: str) -> Reach:
        """Return what import statements of one file name."""
        reach = Reach()
        for one in imports:
            self._resolve(one, importer, reach)
        return reach

    def _resolve(self, one: Import, importer: str, reach: Reach) -> None:
        parts = [part for part in one.module.split(".") if part]
        if one.level:
            folder = posixpath.dirname(importer)
            for _ in range(one.level - 1):
                folder = posixpath.dirname(folder)
            self._from_folder(folder, parts, one, reach)
            return
        known = self._modules.get(one.module)
        if known is not None:
            reach.files.add(known)
            reach.files.update(self._packages_above(known))
            self._add_names(known, one.names, reach)
            return
        for folder in self._search:
            if self._holds(folder, parts[0]):
                self._from_folder(folder, parts, one, reach)
                return
        if one.certain:
            reach.outside.add(parts[0])

    def _from_folder(self, folder: str, parts: list[str], one: Import, reach: Reach) -> None:
        """Follow a dotted name down from a folder."""
        if not parts:  # from . import name
            package = posixpath.join(folder, "__init__.py")
            if self._file(package):
                reach.files.add(package)
            self._add_names(package, one.names, reach)
            return
        for part in parts:
            below = posixpath.join(folder, part)
            package = posixpath.join(below, "__init__.py")
            if self._file(package):
                reach.files.add(package)
            elif self._file(below + ".py"):
                # What follows a module's name is an attribute of it.
                reach.files.add(below + ".py")
                return
            elif not self._folder(below):
                if one.certain:
                    reach.other |= {(FILE, below + ".py"), (FILE, package)}
                return
            folder = below
        self._add_names(posixpath.join(folder, "__init__.py"), one.names, reach)

    def _add_names(self, package: str, names: tuple[str, ...], reach: Reach) -> None:
        """Add the modules among the names that are imported from a package."""
        if posixpath.basename(package) != "__init__.py":
            return
        folder = posixpath.dirname(package)
        for name in names:
            for candidate in (
                posixpath.join(folder, name, "__init__.py"),
                posixpath.join(folder, name + ".py"),
            ):
                if self._file(candidate):
                    reach.files.add(candidate)
                    break

    def _packages_above(self, file: str) -> list[str]:
        found = []
        folder = posixpath.dirname(file)
        if posixpath.basename(file) == "__init__.py":
            folder = posixpath.dirname(folder)
        while folder and self._file(package := posixpath.join(folder, "__init__.py")):
            found.append(package)
            folder = posixpath.dirname(folder)
        return found

    def _holds(self, folder: str, name: str) -> bool:
        below = posixpath.join(folder, name)
        return (
            self._file(below + ".py")
            or self._file(posixpath.join(below, "__init__.py"))
            or self._folder(below)
        )

    def _file(self, path: str) -> bool:
        found = self._is_file.get(path)
        if found is None:
            found = self._is_file[path] = (self._root / path).is_file()
        return found

    def _folder(self, path: str) -> bool:
        """Return whether a folder can be a namespace package."""
        found = self._is_folder.get(path)
        if found is None:
            found = self._is_folder[path] = (self._root / path).is_dir()
        return found
