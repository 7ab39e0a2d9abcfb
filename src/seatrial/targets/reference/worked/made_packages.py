"""Stand-ins for packages that need a cluster or a GPU, under which modules of refrl are imported once more."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def package(name: str, **members: Any) -> ModuleType:
    """Return a module with these members."""
    made = ModuleType(name)
    vars(made).update(members)
    return made


class Replaced:
    """A module some of whose members are others; the module itself stays as it is for all who use it."""

    def __init__(self, real: ModuleType, **members: Any) -> None:
        """Take the module and the other members."""
        vars(self).update(members)
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextmanager
def imported_with(made: Mapping[str, ModuleType], names: Sequence[str]) -> Iterator[list[Any]]:
    """Yield modules that are imported again with the made packages; everything is as before afterwards."""
    parents = [(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2]) for name in names]
    attributes = [(parent, key, vars(parent).get(key)) for parent, key in parents]
    kept = {name: sys.modules.pop(name, None) for name in (*made, *names)}
    sys.modules.update(made)
    try:
        yield [importlib.import_module(name) for name in names]
    finally:
        for name, module in kept.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
        for parent, key, value in attributes:
            vars(parent).pop(key, None)
            if value is not None:
                vars(parent)[key] = value
