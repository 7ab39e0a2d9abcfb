"""What the processes of a session observed about each test and about the project's files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

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
        self.tests.update({nodeid: _seen(row) for nodeid, row in data["tests"].items()})
        self.modules.update(data["modules"])
        self.search += data["search"]
        for path, uses in data["learned"].items():
            self.learned[path] |= _uses(uses)
        for name, into in (("loads", self.loads), ("under", self.under)):
            for path, found in data[name].items():
                into[path] |= set(found)
        self.outputs |= set(data["outputs"])
        self.plugins |= set(data["plugins"])
        self.opaque |= set(data["opaque"])
        self.everywhere |= set(data["everywhere"])


def _seen(row: Mapping[str, Any]) -> Seen:
    return Seen(
        outcome=row["outcome"],
        parts=set(row["parts"]),
        uses=_uses(row["uses"]),
        ran=set(row["ran"]),
        hides=row["hides"],
        modules=set(row["modules"]),
        loaded_by=set(row["loaded_by"]),
    )


def _uses(rows: list[list[str]]) -> set[Use]:
    return {(kind, name) for kind, name in rows}


def _plain(value: Any) -> Any:
    """Return sets as sorted lists, and records as dictionaries."""
    if isinstance(value, Seen):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return sorted(value) if isinstance(value, set) else value
