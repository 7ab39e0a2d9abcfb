"""A fault in functions reaches everybody who holds them; any other asks for a new import."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from seatrial.faults.in_place import change_functions

SOURCE = """
import functools
LIMIT = 3
def double(x, times=2):
    return x * times
def adder(more):
    def add(x):
        return x + more
    return add
class Scale:
    by = 10
    def __call__(self, x):
        return x * self.by
    @property
    def half(self):
        return self.by / 2
    @half.setter
    def half(self, value):
        self.by = value * 2
@functools.cache
def cached(x):
    return [one + 1 for one in range(x)]
HELD = {"double": double, "add": adder(1), "scale": Scale()}
SQUARES = [one * one for one in range(3)]
"""


@pytest.fixture(name="module")
def module_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Import the source."""
    (tmp_path / "changed_in_place.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("changed_in_place")
    del sys.modules["changed_in_place"]


@pytest.mark.parametrize(
    ("old", "new", "ask", "before", "after"),
    [
        ("return x * times", "return -x * times", lambda module: module.HELD["double"](4), 8, -8),
        ("return x + more", "return x - more", lambda module: module.HELD["add"](4), 5, 3),
        ("return x + more", "y = 7\n        return x - more - y", lambda module: module.adder(1)(4), 5, -4),
        ("return x * self.by", "return x / self.by", lambda module: module.HELD["scale"](5), 50, 0.5),
        ("return self.by / 2", "return self.by / 4", lambda module: module.HELD["scale"].half, 5, 2.5),
        ("one + 1 for", "one + 2 for", lambda module: module.cached.__wrapped__(2), [1, 2], [2, 3]),
    ],
)
def test_whoever_holds_a_function_has_the_fault(
    module: ModuleType, old: str, new: str, ask: Callable[[ModuleType], object], before: object, after: object
) -> None:
    """Registries, closures that were made before, methods, properties, comprehensions."""
    assert ask(module) == before
    assert change_functions("changed_in_place", SOURCE, SOURCE.replace(old, new))
    assert ask(module) == after


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("times=2", "times=3"),
        ("by = 10", "by = 11"),
        ("one * one for", "one + one for"),
        ("@functools.cache\n", ""),
        ("return x + more", "return x"),
        ("def double(x, times=2)", "def triple(x, times=2)"),
    ],
)
def test_what_an_import_makes_asks_for_a_new_one(module: ModuleType, old: str, new: str) -> None:
    """Constants, defaults, fields, what ran at the import, decorators, what a closure holds."""
    assert not change_functions("changed_in_place", SOURCE, SOURCE.replace(old, new))
