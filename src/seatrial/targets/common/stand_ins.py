"""Parts of a package that imports more than they use: the package itself left out, stand-ins for what is named."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from seatrial.targets.common.target import Gone


class StandIn(ModuleType):
    """A module of which only names are used, such as types in annotations: each is an empty class."""

    def __init__(self, name: str, given: Mapping[str, Any]) -> None:
        """Keep the other arguments."""
        super().__init__(name)
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        """Return an empty class of that name."""
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def without_init(package: str, inner: Sequence[str] = ()) -> None:
    """Make a package importable without running its `__init__`, nor those of the packages in it that are named.

    Raises:
        Gone: it is not installed and not on the path.
    """
    found = PathFinder.find_spec(package)
    if found is None or found.origin is None:
        raise Gone(f"{package} cannot be found: install it, or put its checkout on PYTHONPATH")
    root = Path(found.origin).parent
    for name in (package, *inner):
        if name not in sys.modules:
            bare = ModuleType(name)
            bare.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
            sys.modules[name] = bare


def import_without(module: str, unused: Sequence[str]) -> Any:
    """Import a module of which only functions are used that need none of some packages; each missing one is replaced.

    Args:
        module: of the stack.
        unused: packages that the module imports and its functions do not use.

    Raises:
        ModuleNotFoundError: another package is missing.
    """
    while True:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            name = error.name or ""
            if name.partition(".")[0] not in unused or name in sys.modules:
                raise
            stand_in = StandIn(name, {})
            stand_in.__spec__ = ModuleSpec(name, None)
            stand_in.__path__ = []
            sys.modules[name] = stand_in


def import_part(module: str, stand_ins: Mapping[str, Mapping[str, Any]]) -> Any:
    """Import a module of such a package; each stand-in takes its place unless it was imported already.

    Raises:
        Gone: the package has no such module.
    """
    for name, given in stand_ins.items():
        sys.modules.setdefault(name, StandIn(name, given))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise Gone(f"the package has no {module}") from error
        raise
