"""From what was seen in a session to the records of its tests."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seatrial.pytest_plugin.affected.fingerprints import (
    CONFIG,
    DIST,
    GLOB,
    MACHINE,
    PART,
    PYTHON,
    UNKNOWN,
    Fingerprints,
)
from seatrial.pytest_plugin.affected.graph import ImportGraph, Reach
from seatrial.pytest_plugin.affected.packages import Packages
from seatrial.pytest_plugin.affected.sources import Import
from seatrial.pytest_plugin.affected.store import Record, Version
from seatrial.pytest_plugin.affected.watch import ENV, FILE, PY
from seatrial.pytest_plugin.affected.windows import Use

_PATH_WORD = re.compile(r"[\w./-]+")
_SCRIPTS = (".sh", ".bash")


@dataclass
class Seen:
    """What one test used."""

    outcome: str
    parts: set[str]
    uses: set[Use]
    modules: set[str]
    """Modules that it declares."""
    loaded_by: set[str]
    """Files whose imports by name it did itself."""

    def to_json(self) -> list[Any]:
        """Return it as lists, for the way from an xdist worker."""
        return [
            self.outcome,
            sorted(self.parts),
            sorted(map(list, self.uses)),
            sorted(self.modules),
            sorted(self.loaded_by),
        ]

    @classmethod
    def from_json(cls, data: list[Any]) -> Seen:
        """Read what `to_json` wrote."""
        outcome, parts, uses, modules, loaded_by = data
        return cls(outcome, set(parts), {(k, n) for k, n in uses}, set(modules), set(loaded_by))


@dataclass
class Session:
    """What all processes that ran tests saw."""

    tests: dict[str, Seen] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    """Files of imported modules, by name."""
    search: list[str] = field(default_factory=list)
    """Folders on the import path, relative to the project."""
    learned: defaultdict[str, set[Use]] = field(default_factory=lambda: defaultdict(set))
    loads: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    outputs: set[str] = field(default_factory=set)
    plugins: set[str] = field(default_factory=set)
    """Project files that are plugins of pytest: every test depends on them."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, for the way from an xdist worker."""
        return {
            "tests": {nodeid: seen.to_json() for nodeid, seen in self.tests.items()},
            "modules": self.modules,
            "search": self.search,
            "learned": {path: sorted(map(list, uses)) for path, uses in self.learned.items()},
            "loads": {path: sorted(files) for path, files in self.loads.items()},
            "outputs": sorted(self.outputs),
            "plugins": sorted(self.plugins),
        }

    def add_json(self, data: Mapping[str, Any]) -> None:
        """Take over what another process saw."""
        self.tests.update({nodeid: Seen.from_json(row) for nodeid, row in data["tests"].items()})
        self.modules.update(data["modules"])
        self.search += data["search"]
        for path, uses in data["learned"].items():
            self.learned[path] |= {(kind, name) for kind, name in uses}
        for path, files in data["loads"].items():
            self.loads[path] |= set(files)
        self.outputs |= set(data["outputs"])
        self.plugins |= set(data["plugins"])


@dataclass(frozen=True, kw_only=True)
class Always:
    """What every test of the project depends on."""

    config: str | None
    """Configuration file of pytest."""
    globs: tuple[str, ...]
    env: tuple[str, ...]

    def uses(self) -> set[Use]:
        """Return them as uses."""
        found = {(PYTHON, "")} | {(GLOB, pattern) for pattern in self.globs} | {(ENV, n) for n in self.env}
        return found | ({(CONFIG, self.config)} if self.config else set())


class Learner:
    """Turns a session into records."""

    def __init__(self, root: Path, session: Session, fingerprints: Fingerprints, always: Always) -> None:
        self._root = root
        self._session = session
        self._fingerprints = fingerprints
        self._packages = Packages()
        self._always = always.uses()
        self._shared: dict[frozenset[str], Reach] = {}
        self._graph = ImportGraph(
            root,
            search=[*session.search, "", "src"],
            modules=session.modules,
            imports_of=self._imports_of,
            learned=session.learned,
            loads=session.loads,
        )

    def records(self, old: Mapping[str, Record], started: float) -> dict[str, Record]:
        """Return the record of each test that ran.

        Args:
            old: records of earlier sessions.
            started: when the session began, in seconds since the epoch. What changed later counts as changed:
                nobody knows which content the tests saw.
        """
        stamps: dict[Use, Version | None] = {}
        found = {}
        for nodeid, seen in self._session.tests.items():
            versions = set()
            for use in self._uses(seen) | self._still_true(old.get(nodeid)):
                if use not in stamps:
                    stamps[use] = self._stamp(use, started)
                version = stamps[use]
                if version is not None:
                    versions.add(version)
            found[nodeid] = Record(seen.outcome, frozenset(versions))
        return found

    def _uses(self, seen: Seen) -> set[Use]:
        """Return everything a test depends on."""
        own = {part.partition("::")[0] for part in seen.parts}
        start = self._own_imports(frozenset(seen.parts))
        declared = [Import(0, name, (), True) for name in sorted(seen.modules)]
        more = Reach(set(start.files), set(start.outside), set(start.other))
        more.add(self._graph.direct(declared, ""))
        more.files |= {name for kind, name in seen.uses if kind == PY and name not in own}
        more.files |= self._session.plugins
        scripts = self._scripts(name for kind, name in seen.uses if kind == FILE)
        more.files |= {path for path in scripts if path.endswith(".py")}
        reach = self._graph.reach(more, seen.loaded_by)
        uses = {use for use in seen.uses if use[0] != PY} | reach.other | self._always
        uses |= {(FILE, path) for path in scripts if not path.endswith(".py")}
        uses |= {(PY, path) for path in reach.files}
        uses |= {(PART, part) for part in seen.parts}
        uses |= {(DIST, name) for name in self._packages.behind(reach.outside)}
        if seen.outcome == "skipped":
            uses.add((MACHINE, ""))
        return uses

    def _own_imports(self, parts: frozenset[str]) -> Reach:
        """Return what the parts of a test import, and what importing their files was seen to use."""
        found = self._shared.get(parts)
        if found is None:
            found = self._shared[parts] = Reach()
            for part in parts:
                path, _, name = part.partition("::")
                source = self._fingerprints.source(path)
                known = source.part(name) if source is not None else None
                if known is not None:
                    found.add(self._graph.direct(known.imports, path))
                found.add(self._graph.learned_of(path))
        return found

    def _imports_of(self, path: str) -> tuple[Import, ...]:
        source = self._fingerprints.source(path)
        return () if source is None else source.whole.imports

    def _still_true(self, record: Record | None) -> set[Use]:
        """Return what the test used in earlier sessions, if its code is still the same.

        One process may read a file once for many tests: which of them is seen to read it depends on the order.
        """
        if record is None or record.outcome == "failed":
            return set()
        for kind, name, then in record.versions:
            if kind in (PY, PART) and self._fingerprints.of(kind, name) != then:
                return set()
        return {(kind, name) for kind, name, _ in record.versions if kind != MACHINE}

    def _stamp(self, use: Use, started: float) -> Version | None:
        kind, name = use
        if kind in (PY, PART, FILE):
            path = name.partition("::")[0]
            if self._changed_since(path, started):
                return None if path in self._session.outputs else (kind, name, UNKNOWN)
        return kind, name, self._fingerprints.of(kind, name)

    def _changed_since(self, path: str, started: float) -> bool:
        try:
            # Unlike the modification time, no tool sets this one back.
            return (self._root / path).stat().st_ctime >= started
        except OSError:
            return False

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
