"""Transitive imports inside the project, through packages, relative imports and re-exports, without importing."""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from seatrial.pytest_plugin.affected.sources import Source, splits
from seatrial.pytest_plugin.affected.syntax import REST, Import
from seatrial.pytest_plugin.affected.watch import FILE, PY
from seatrial.pytest_plugin.affected.windows import Use

_EMPTY: frozenset[str] = frozenset()


@dataclass
class Reach:
    """Everything that some code can reach."""

    files: set[str] = field(default_factory=set)
    """Python files, relative to the project, of which only the code that runs on import counts."""
    whole: set[str] = field(default_factory=set)
    """Python files of which everything counts."""
    functions: set[str] = field(default_factory=set)
    """Functions, as `path::name`."""
    outside: set[str] = field(default_factory=set)
    """Top-level modules from outside the project."""
    names: set[str] = field(default_factory=set)
    """Top-level names of all imports, inside the project or not."""
    other: set[Use] = field(default_factory=set)
    """Other dependencies: missing files that an import searched for, and what was learned about reached files."""

    def add(self, more: Reach) -> None:
        """Add everything that `more` reaches."""
        for name, found in vars(self).items():
            found |= getattr(more, name)


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What was observed about the project's files while tests ran."""

    uses: Mapping[str, Set[Use]]
    """What importing a file used, by file (see `windows`)."""
    loads: Mapping[str, Set[str]]
    """Files that functions imported by name, by the importing file."""
    under: Mapping[str, Set[str]] = field(default_factory=dict)
    """Functions that ran during a file's import, or below one of its functions that keep results, by file."""
    opaque: Set[str] = _EMPTY
    """Executed files whose function calls were not observed."""


class ImportGraph:
    """Resolves imports to files of the project.

    Args:
        root: the project.
        search: folders that absolute imports start from, relative to the project (`""`, `src`, ...).
        modules: files of the modules that were imported, by name; they take precedence over a search.
        source_of: returns a parsed Python file.
        learned: what was observed while tests ran.
    """

    def __init__(
        self,
        root: Path,
        *,
        search: Iterable[str],
        modules: Mapping[str, str],
        source_of: Callable[[str], Source | None],
        learned: Learned,
    ) -> None:
        self._search = list(dict.fromkeys(search))
        self._modules = modules
        self._source_of = source_of
        self._learned = learned
        self._direct: dict[tuple[str, bool], Reach] = {}
        self._file_of: dict[str, str] = {}
        self._of_functions: dict[str, Reach] = {}
        self._runs_unseen = functools.cache(self._may_run_unseen)
        # A folder can be a namespace package.
        self._file: Callable[[str], bool] = functools.cache(lambda path: (root / path).is_file())
        self._folder: Callable[[str], bool] = functools.cache(lambda path: (root / path).is_dir())

    def reach(self, start: Reach, loaded_by: Set[str] = _EMPTY, known: Reach | None = None) -> Reach:
        """Return everything reachable from the files and functions of `start`, including these.

        The imports that a file executes on import are reached; those of its functions only if the functions ran, or
        if it is not known which of them ran.

        Args:
            start: direct imports of a test.
            loaded_by: files whose imports by name the test did itself. For other files all imports by name ever
                observed count, because they may happen once for all tests.
            known: what is already reached, closed under imports; only additions to it are returned.
        """
        known = known or Reach()
        total = Reach(outside=set(start.outside), names=set(start.names), other=set(start.other))
        waiting = [*((file, False) for file in start.files), *((file, True) for file in start.whole)]
        functions = start.functions
        while waiting or functions:
            if functions:
                new = functions - total.functions - known.functions
                total.functions |= new
                waiting += [(file, False) for file in self._files_of(new) - total.files]
                for direct in [self._of_functions[name] for name in new if name in self._of_functions]:
                    total.outside |= direct.outside
                    total.names |= direct.names
                    total.other |= direct.other
                    waiting += [(other, False) for other in direct.files]
                functions = set()
                continue
            file, is_whole = waiting.pop()
            is_whole = is_whole or self._runs_unseen(file)
            if file in total.whole or file in known.whole:
                continue
            if not is_whole and (file in total.files or file in known.files):
                continue
            (total.whole if is_whole else total.files).add(file)
            direct = self._direct_of(file, is_whole=is_whole)
            total.outside |= direct.outside
            total.names |= direct.names
            total.other |= direct.other
            functions = direct.functions
            waiting += [(other, is_whole) for other in direct.files]
            if file not in loaded_by:
                waiting += [(other, is_whole) for other in self._learned.loads.get(file, _EMPTY)]
        total.files -= total.whole
        if total.whole:
            total.functions = {one for one in total.functions if one.partition("::")[0] not in total.whole}
        return total

    def _files_of(self, functions: set[str]) -> set[str]:
        """Return the files of functions that ran, and cache the functions' own imports; most import nothing."""
        files = self._file_of
        for name in functions.difference(files):
            path, _, part = name.partition("::")
            files[name] = path
            source = self._source_of(path)
            known = source.part(part) if source is not None else None
            if known is not None and known.imports:
                self._of_functions[name] = self.direct(known.imports, path)
        return {files[name] for name in functions}

    def _may_run_unseen(self, file: str) -> bool:
        source = self._source_of(file)
        return source is not None and source.runs_unseen

    def is_opaque(self, file: str) -> bool:
        """Return whether the calls of a file's functions are not observed."""
        return file in self._learned.opaque or splits(file)

    def _direct_of(self, file: str, *, is_whole: bool) -> Reach:
        key = (file, is_whole)
        found = self._direct.get(key)
        if found is None:
            source = self._source_of(file)
            everything = is_whole or self.is_opaque(file)
            part = None if source is None else source.whole if everything else source.part(REST)
            found = self.direct(() if part is None else part.imports, file)
            found.add(self.learned_of(file))
            # Importing a module runs its parent packages.
            found.files |= set(self.packages_above(file))
            found.files.discard(file)
            self._direct[key] = found
        return found

    def learned_of(self, file: str) -> Reach:
        """Return what importing a file was observed to use."""
        uses = self._learned.uses.get(file, frozenset())
        return Reach(
            files={name for kind, name in uses if kind == PY},
            functions=set(self._learned.under.get(file, _EMPTY)),
            other={use for use in uses if use[0] != PY},
        )

    def direct(self, imports: Iterable[Import], importer: str) -> Reach:
        """Return what the import statements of one file reach."""
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
        if one.certain:
            reach.names.add(parts[0])
        known = self._modules.get(one.module)
        if known is not None:
            reach.files.add(known)
            reach.files.update(self.packages_above(known))
            self._add_names(known, one.names, reach)
            return
        for folder in self._search:
            if self._holds(folder, parts[0]):
                self._from_folder(folder, parts, one, reach)
                return
        if one.certain:
            reach.outside.add(parts[0])

    def _from_folder(self, folder: str, parts: list[str], one: Import, reach: Reach) -> None:
        """Follow a dotted name from a folder."""
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
                # The rest of the name are attributes of the module.
                reach.files.add(below + ".py")
                return
            elif not self._folder(below):
                if one.certain:
                    reach.other |= {(FILE, below + ".py"), (FILE, package)}
                return
            folder = below
        self._add_names(posixpath.join(folder, "__init__.py"), one.names, reach)

    def _add_names(self, package: str, names: tuple[str, ...], reach: Reach) -> None:
        """Add those imported names of a package that are modules."""
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

    def packages_above(self, file: str) -> list[str]:
        """Return the `__init__.py` of the packages that contain a file."""
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
