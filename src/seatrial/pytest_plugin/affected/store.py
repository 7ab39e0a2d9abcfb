"""What the processes of a session observed, and the map on disk: what each test depended on when it last ran.

Paths are relative to the project, so a moved checkout or another machine can use the map. A record consists of numbered
`versions` (kind, name, fingerprint) in two sets: those shared by the tests of one module, and a test's own.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from seatrial.files import write_whole
from seatrial.pytest_plugin.affected.fingerprints import Known
from seatrial.pytest_plugin.affected.windows import Use

IMPORTED = "imported"
"""A Python file that was imported in the tests' process: code that runs on import, and functions that ran, count."""


@dataclass(kw_only=True)
class Seen:
    """What one test used."""

    outcome: str
    parts: set[str]
    """Its function, its fixtures and the rest of their files."""
    uses: set[Use]
    ran: set[str]
    """Functions that it called."""
    hides: bool
    """Whether functions may have run for it unobserved: then everything that its imports reach counts."""
    modules: set[str]
    """Modules that the test declares."""
    loaded_by: set[str]
    """Files whose imports by name the test itself executed."""


@dataclass
class Session:
    """What all processes that ran tests observed."""

    tests: dict[str, Seen] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    """Files of imported modules, by name."""
    search: list[str] = field(default_factory=list)
    """Folders on the import path, relative to the project."""
    learned: defaultdict[str, set[Use]] = field(default_factory=lambda: defaultdict(set))
    loads: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    under: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    outputs: set[str] = field(default_factory=set)
    plugins: set[str] = field(default_factory=set)
    """Project files that are pytest plugins: every test depends on them."""
    opaque: set[str] = field(default_factory=set)
    """Executed files whose function calls were not observed."""
    everywhere: set[str] = field(default_factory=set)
    """Functions that ran outside any test: every test depends on them."""

    def to_json(self) -> dict[str, Any]:
        """Return the session as JSON values, for the transfer from an xdist worker."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}

    def add_json(self, data: Mapping[str, Any]) -> None:
        """Add what another process observed."""
        for nodeid, row in data["tests"].items():
            sets = {name: _as_set(value) for name, value in row.items() if isinstance(value, list)}
            self.tests[nodeid] = Seen(**{**row, **sets})
        self.modules.update(data["modules"])
        self.search += data["search"]
        for name in ("learned", "loads", "under"):
            for path, found in data[name].items():
                getattr(self, name)[path].update(_as_set(found))
        for name in ("outputs", "plugins", "opaque", "everywhere"):
            getattr(self, name).update(data[name])


def _as_set(items: list[Any]) -> set[Any]:
    """Return a list of texts, or of pairs, as a set."""
    return {item if isinstance(item, str) else tuple(item) for item in items}


def _plain(value: Any) -> Any:
    """Return sets as sorted lists, and records as dictionaries."""
    if isinstance(value, Seen):
        value = vars(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return sorted(value) if isinstance(value, set) else value


SCHEMA = 4
Version = tuple[str, str, str]
"""Kind, name, fingerprint."""


@dataclass(frozen=True)
class Record:
    """What one test depended on when it last ran."""

    outcome: str
    """`passed`, `skipped` or `failed`."""
    shared: frozenset[Version]
    """Dependencies that other tests of its module share."""
    own: frozenset[Version] = frozenset()

    @property
    def versions(self) -> frozenset[Version]:
        """All dependencies."""
        return self.shared | self.own


@dataclass
class Store:
    """All records, and the digests of Python files."""

    tests: dict[str, Record] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Store:
        """Read the map; a missing or damaged one, or one of another schema, is empty: then every test runs."""
        try:
            data = json.loads(path.read_text())
        except (OSError, ValueError):
            return cls()
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            return cls()
        try:
            return cls._from_json(data)
        except (KeyError, TypeError, ValueError, IndexError):
            return cls()

    @classmethod
    def _from_json(cls, data: Mapping[str, Any]) -> Store:
        versions: list[Version] = [(kind, name, fingerprint) for kind, name, fingerprint in data["versions"]]
        sets = [frozenset(versions[number] for number in numbers) for numbers in data["sets"]]
        return cls(
            {nodeid: Record(outcome, sets[a], sets[b]) for nodeid, (outcome, a, b) in data["tests"].items()},
            {path: (raw, whole, dict(parts)) for path, (raw, whole, parts) in data["known"].items()},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the map as JSON values."""
        numbers: dict[Version, int] = {}
        sets: dict[frozenset[Version], int] = {}
        rows: list[list[int]] = []
        tests = {}
        for nodeid, record in sorted(self.tests.items()):
            for versions in (record.shared, record.own):
                if versions not in sets:
                    sets[versions] = len(sets)
                    rows.append(sorted(numbers.setdefault(v, len(numbers)) for v in versions))
            tests[nodeid] = [record.outcome, sets[record.shared], sets[record.own]]
        return {
            "schema": SCHEMA,
            "versions": [list(version) for version in numbers],
            "sets": rows,
            "tests": tests,
            "known": {path: list(known) for path, known in sorted(self.known.items())},
        }

    def merge(self, tests: Mapping[str, Record], known: Mapping[str, Known], gone: Iterable[str]) -> None:
        """Add what a session learned, and remove tests that no longer exist."""
        self.tests.update(tests)
        for nodeid in gone:
            self.tests.pop(nodeid, None)
        sets = {versions for record in self.tests.values() for versions in (record.shared, record.own)}
        needed = {name.partition("::")[0] for versions in sets for _, name, _ in versions}
        self.known = {path: facts for path, facts in {**self.known, **known}.items() if path in needed}

    def save(self, path: Path) -> None:
        """Write the map atomically."""
        write_whole(path, json.dumps(self.to_json(), separators=(",", ":")))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the map's lock, so that two sessions that end together both keep their records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ignore = path.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    with path.with_name(path.name + ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
