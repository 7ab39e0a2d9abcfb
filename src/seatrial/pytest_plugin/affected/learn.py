"""Turns the observations of a session into the records of its tests."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from seatrial.pytest_plugin.affected.fingerprints import (
    CONFIG,
    DIST,
    GLOB,
    MACHINE,
    OPTION,
    PART,
    PYTHON,
    SHADOW,
    UNKNOWN,
    Fingerprints,
    Packages,
    changed_since,
)
from seatrial.pytest_plugin.affected.graph import ImportGraph, Learned, Reach
from seatrial.pytest_plugin.affected.sources import DOCS
from seatrial.pytest_plugin.affected.stats import STAT
from seatrial.pytest_plugin.affected.store import IMPORTED, Record, Seen, Session, Version
from seatrial.pytest_plugin.affected.syntax import REST, Import
from seatrial.pytest_plugin.affected.watch import ENV, FILE, PY, UNWATCHED
from seatrial.pytest_plugin.affected.windows import Use

_PATH_WORD = re.compile(r"[\w./-]+")
_SCRIPTS = (".sh", ".bash")


@dataclass(frozen=True, kw_only=True)
class Always:
    """Dependencies of all tests of the project."""

    config: str | None
    """Configuration file of pytest."""
    globs: tuple[str, ...]
    env: tuple[str, ...]

    def uses(self) -> set[Use]:
        """Return them as uses."""
        found = {(PYTHON, "")} | {(GLOB, pattern) for pattern in self.globs} | {(ENV, n) for n in self.env}
        return found | ({(CONFIG, self.config)} if self.config else set())


class Learner:
    """Turns the observations of a session into records."""

    def __init__(
        self, root: Path, session: Session, fingerprints: Fingerprints, always: Always, options: Iterable[str]
    ) -> None:
        self._root = root
        self._session = session
        self._fingerprints = fingerprints
        self._packages = Packages()
        self._always = always.uses() | {(OPTION, name) for name in options}
        self._search = list(dict.fromkeys([*session.search, "", "src"]))
        self._reading: dict[int, tuple[Reach, bool]] = {}
        self._changed: dict[str, bool] = {}
        self._folders = ":".join(self._search)
        self._starts: dict[str, Reach] = {}
        self._function_uses: dict[str, Use | None] = {}
        self._shared: dict[tuple[frozenset[str], frozenset[str], bool], tuple[Reach, frozenset[Use]]] = {}
        learned = Learned(
            uses=session.learned, loads=session.loads, under=session.under, opaque=session.opaque
        )
        self._graph = ImportGraph(
            root,
            search=self._search,
            modules=session.modules,
            source_of=self._fingerprints.source,
            learned=learned,
        )

    def records(self, old: Mapping[str, Record], started: float) -> dict[str, Record]:
        """Return the record of each test that ran.

        Args:
            old: records of earlier sessions.
            started: when the session began, in seconds since the epoch. A file whose bytes changed later is recorded as
                changed, because it is unknown which content the tests saw.
        """
        stamps: dict[Use, Version | None] = {}

        def stamped(uses: set[Use] | frozenset[Use]) -> frozenset[Version]:
            for use in uses.difference(stamps):
                stamps[use] = self._stamp(use, started)
            return frozenset(version for version in map(stamps.__getitem__, uses) if version is not None)

        found = {}
        shared_versions: dict[frozenset[Use], frozenset[Version]] = {}
        for nodeid, seen in self._session.tests.items():
            reach, shared = self._shared_by_module(seen)
            if shared not in shared_versions:
                shared_versions[shared] = stamped(shared)
            own = (self._uses(seen, reach) | self._still_true(old.get(nodeid))) - shared
            found[nodeid] = Record(seen.outcome, shared_versions[shared], stamped(own))
        return found

    def _shared_by_module(self, seen: Seen) -> tuple[Reach, frozenset[Use]]:
        """Return what a test depends on only through its module and conftests, as other tests there do."""
        rests = frozenset(part for part in seen.parts if part.endswith(f"::{REST}"))
        key = (rests, frozenset(seen.loaded_by), seen.hides)
        found = self._shared.get(key)
        if found is None:
            start = self._own_imports(rests)
            start.functions |= self._session.everywhere
            reach = self._graph.reach(_hidden(start) if seen.hides else start, seen.loaded_by)
            uses = self._of_reach(reach, {part.partition("::")[0] for part in rests})
            uses |= {(PART, part) for part in rests} | self._always
            found = self._shared[key] = reach, frozenset(uses)
        return found

    def _uses(self, seen: Seen, shared: Reach) -> set[Use]:
        """Return everything that a test depends on in addition to what its module shares."""
        own = {part.partition("::")[0] for part in seen.parts}
        start = self._own_imports(part for part in seen.parts if not part.endswith(f"::{REST}"))
        start.files |= {name for kind, name in seen.uses if kind == IMPORTED}
        start.functions |= seen.ran
        start.whole |= {name for kind, name in seen.uses if kind == PY}
        start.whole |= self._graph.direct(
            [Import(0, name, (), True) for name in sorted(seen.modules)], ""
        ).files
        start.whole |= self._session.plugins
        scripts = self._scripts(name for kind, name in seen.uses if kind == FILE)
        start.whole |= {path for path in scripts if path.endswith(".py")}
        if seen.hides:
            start = _hidden(start)
        start.files -= own
        start.whole -= own
        uses = self._of_reach(self._graph.reach(start, seen.loaded_by, shared), own, shared)
        uses |= {use for use in seen.uses if use[0] not in (PY, IMPORTED)}
        uses |= {(FILE, path) for path in scripts if not path.endswith(".py")}
        uses |= {(PART, part) for part in seen.parts}
        if seen.outcome == "skipped":
            uses.add((MACHINE, ""))
        return uses

    def _of_reach(self, reach: Reach, own: set[str], shared: Reach | None = None) -> set[Use]:
        """Return reached code as uses; of a test's own files only its parts count."""
        uses = set(reach.other) | {(PY, path) for path in reach.whole - own}
        for path in reach.files - own:
            uses.add((PY, path) if self._graph.is_opaque(path) else (PART, f"{path}::{REST}"))
        uses |= self._function_uses_of(reach.functions)
        known = shared or Reach()
        uses |= {(DIST, name) for name in self._packages.behind(reach.outside - known.outside)}
        uses |= {(SHADOW, f"{name}@{self._folders}") for name in reach.names - known.names}
        reaches = [reach, shared] if shared else [reach]
        if any(self._reads_docstrings(one) for one in reaches):
            files = set().union(*(one.files for one in reaches))
            uses |= {(PART, f"{path}::{DOCS}") for path in files if not self._graph.is_opaque(path)}
        return uses

    def _function_uses_of(self, names: set[str]) -> set[Use]:
        """Return functions that ran as uses, except those of files that count as a whole."""
        for name in names.difference(self._function_uses):
            is_opaque = self._graph.is_opaque(name.partition("::")[0])
            self._function_uses[name] = None if is_opaque else (PART, name)
        return {use for use in map(self._function_uses.__getitem__, names) if use is not None}

    def _reads_docstrings(self, reach: Reach) -> bool:
        found = self._reading.get(id(reach))
        if found is None:
            sources = (self._fingerprints.source(path) for path in (*reach.files, *reach.whole))
            reads = any(source is not None and source.reads_docstrings for source in sources)
            found = self._reading[id(reach)] = reach, reads
        return found[1]

    def _own_imports(self, parts: Iterable[str]) -> Reach:
        """Return what the parts of a test import, and what importing their files was observed to use."""
        found = Reach()
        for part in parts:
            if part not in self._starts:
                self._starts[part] = self._imports_of_part(part)
            found.add(self._starts[part])
        return found

    def _imports_of_part(self, part: str) -> Reach:
        path, _, name = part.partition("::")
        source = self._fingerprints.source(path)
        known = source.part(name) if source is not None else None
        found = self._graph.direct(() if known is None else known.imports, path)
        found.add(self._graph.learned_of(path))
        found.files |= set(self._graph.packages_above(path))
        return found

    def _still_true(self, record: Record | None) -> set[Use]:
        """Return what the test used in earlier sessions if its code is unchanged.

        A process may read a file once for many tests, so which test is observed to read it depends on the order.
        """
        if record is None or record.outcome == "failed":
            return set()
        for kind, name, then in record.versions:
            if kind in (PY, PART) and self._fingerprints.of(kind, name) != then:
                return set()
        return {
            (kind, name)
            for kind, name, _ in record.versions
            if kind not in (MACHINE, UNWATCHED, SHADOW, OPTION)
        }

    def _stamp(self, use: Use, started: float) -> Version | None:
        kind, name = use
        if kind == UNWATCHED:
            return kind, name, UNKNOWN
        if kind == STAT and name in self._session.outputs:
            return None
        if kind in (PY, PART, FILE):
            path = name.partition("::")[0]
            if path not in self._changed:
                self._changed[path] = self._changed_since(path, started)
            if self._changed[path]:
                return None if path in self._session.outputs else (kind, name, UNKNOWN)
        return kind, name, self._fingerprints.of(kind, name)

    def _changed_since(self, path: str, started: float) -> bool:
        if not changed_since(self._root / path, started):
            return False
        return path in self._session.outputs or not self._fingerprints.is_as_at_start(path)

    def _scripts(self, files: Iterable[str]) -> set[str]:
        """Return the project's files that shell scripts name, transitively: shells have no audit events."""
        found: set[str] = set()
        waiting = [path for path in files if path.endswith(_SCRIPTS)]
        while waiting:
            script = waiting.pop()
            for word in set(_PATH_WORD.findall(self._text(script))):
                for folder in ("", os.path.dirname(script)):  # noqa: PTH120
                    path = os.path.normpath(os.path.join(folder, word))  # noqa: PTH118
                    if (
                        path not in found
                        and not path.startswith(("..", "/"))
                        and (self._root / path).is_file()
                    ):
                        found.add(path)
                        if path.endswith(_SCRIPTS):
                            waiting.append(path)
        return found

    def _text(self, path: str) -> str:
        try:
            return (self._root / path).read_text(errors="replace")
        except OSError:
            return ""


def _hidden(start: Reach) -> Reach:
    """Return a test's start with everything reached counted as a whole, because some calls were not observed."""
    files = start.files | {name.partition("::")[0] for name in start.functions}
    return Reach(whole=start.whole | files, outside=start.outside, names=start.names, other=start.other)
