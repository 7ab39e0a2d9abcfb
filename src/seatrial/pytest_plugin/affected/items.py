"""The parts of files that a test consists of: its module, its own function, its fixtures, its conftests."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from seatrial.pytest_plugin.affected.fingerprints import DIST, GLOB
from seatrial.pytest_plugin.affected.sources import FIXTURES
from seatrial.pytest_plugin.affected.syntax import REST
from seatrial.pytest_plugin.affected.watch import ENV, FILE
from seatrial.pytest_plugin.affected.windows import Use

MARKER = "depends_on"
MARKER_HELP = (
    "depends_on(*globs, env=(), modules=(), packages=()): dependencies of this test that --affected cannot observe: "
    "files by pattern, environment variables, modules that another process imports, distributions"
)
Relative = Callable[[str], str | None]
FixtureKey = tuple[str, str]
"""Name of a fixture and the node id under which it is defined."""


@dataclass
class TestFacts:
    """What pytest knows about the parts of a test."""

    __test__ = False

    parts: set[str] = field(default_factory=set)
    """`path::qualified name` of its function and fixtures; `path::` for the rest of their files."""
    uses: set[Use] = field(default_factory=set)
    """What the test declares."""
    modules: set[str] = field(default_factory=set)
    """Modules that the test declares."""
    fixtures: set[FixtureKey] = field(default_factory=set)
    """Its fixtures, including those shared with other tests."""


def facts_of(item: pytest.Item, root: Path, relative: Relative) -> TestFacts:
    """Return what is known about a test before it runs."""
    facts = TestFacts()
    path = relative(str(item.path))
    if path is not None:
        if path.endswith(".py"):
            facts.parts.add(f"{path}::{REST}")
            _add_function(getattr(item, "function", None), facts, relative)
        else:
            facts.uses.add((FILE, path))
        parts, absent = _conftests_above(path, root)
        facts.parts |= parts
        facts.uses |= absent
    for marker in item.iter_markers(MARKER):
        _add_declared(marker, facts)
    return facts


def add_fixtures(item: pytest.Item, facts: TestFacts, relative: Relative) -> None:
    """Add the fixtures that a test has requested so far, by name or through `request.getfixturevalue`."""
    info = getattr(item, "_fixtureinfo", None)
    definitions: Mapping[str, Iterable[Any]] = getattr(info, "name2fixturedefs", {})
    requested = {
        one.argname: [one] for one in getattr(getattr(item, "_request", None), "_fixture_defs", {}).values()
    }
    if any(name not in definitions for name in requested):
        # Requested while the test ran: a new, closer fixture of that name would be used instead.
        facts.parts |= {
            f"{part.partition('::')[0]}::{FIXTURES}" for part in facts.parts if part.endswith("::")
        }
    for found in (definitions, requested):
        for name, defined in found.items():
            for definition in defined:
                facts.fixtures.add((name, definition.baseid or ""))
                _add_function(definition.func, facts, relative)


def made_of(item: pytest.Item, relative: Relative) -> frozenset[str]:
    """Return the functions that pytest would call for a test now: its own, and the fixtures that it names."""
    facts = TestFacts()
    _add_function(getattr(item, "function", None), facts, relative)
    add_fixtures(item, facts, relative)
    return frozenset(facts.parts)


def _add_function(function: Any, facts: TestFacts, relative: Relative) -> None:
    """Add the function of a test or fixture, and the rest of its file."""
    function = getattr(function, "__func__", function)
    # Other callables may not be hashable.
    parts_of = _parts_of_function if isinstance(function, FunctionType) else _parts_of
    facts.parts |= parts_of(function, relative)


def _parts_of(function: Any, relative: Relative) -> frozenset[str]:
    function = inspect.unwrap(function) if callable(function) else None
    code = getattr(function, "__code__", None)
    path = relative(code.co_filename) if code is not None else None
    return frozenset(
        () if path is None else (f"{path}::{REST}", f"{path}::{getattr(function, '__qualname__', '')}")
    )


_parts_of_function = functools.cache(_parts_of)


@functools.cache
def _conftests_above(path: str, root: Path) -> tuple[frozenset[str], frozenset[Use]]:
    """Return every conftest from the test's folder to the root, present or not: a new one would count."""
    folder = Path(path).parent
    names = [(place / "conftest.py").as_posix() for place in (folder, *folder.parents)]
    present = {name for name in names if (root / name).is_file()}
    return frozenset(f"{name}::{REST}" for name in present), frozenset(
        (FILE, n) for n in names if n not in present
    )


def _add_declared(marker: pytest.Mark, facts: TestFacts) -> None:
    """Read `@pytest.mark.depends_on`.

    Raises:
        pytest.UsageError: the marker has an unknown argument.
    """
    unknown = set(marker.kwargs) - {"env", "modules", "packages"}
    if unknown or not all(isinstance(pattern, str) for pattern in marker.args):
        raise pytest.UsageError(f"@pytest.mark.{MARKER} takes {MARKER_HELP}; not {marker}")
    facts.uses |= {(GLOB, pattern) for pattern in marker.args}
    facts.uses |= {(ENV, name) for name in _words(marker.kwargs.get("env", ()))}
    facts.uses |= {(DIST, name) for name in _words(marker.kwargs.get("packages", ()))}
    facts.modules |= set(_words(marker.kwargs.get("modules", ())))


def _words(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def imported_modules(relative: Relative) -> dict[str, str]:
    """Return the project's files among the modules that this process has imported, by module name."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        path = relative(file) if isinstance(file, str) and file.endswith(".py") else None
        if path is not None:
            found[name] = path
    return found


def plugin_files(
    manager: pytest.PytestPluginManager, relative: Relative, left_out: Collection[str]
) -> set[str]:
    """Return the project's files among pytest's plugins; conftests are found by their location.

    Args:
        manager: pytest's plugin manager.
        relative: returns the path of a file in the project.
        left_out: names of plugin modules that, according to the project, do not affect its tests.
    """
    files = set()
    for plugin in manager.get_plugins():
        file = getattr(plugin, "__file__", None)
        if getattr(plugin, "__name__", None) in left_out:
            continue
        path = relative(file) if isinstance(file, str) else None
        if path is not None and not path.endswith("conftest.py"):
            files.add(path)
    return files
