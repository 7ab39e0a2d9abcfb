"""Registries of parts that a configuration names: built in, from an installed package, or given by import path.

A built-in part is a line `name: "module:attribute"`, imported on demand, so that reading a configuration loads neither
torch nor unused parts. An installed package offers a part by an entry point of the group
(`[project.entry-points."refrl.losses"]`); any importable object is named as `package.module:attribute`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from refrl.config.base import Section
from refrl.config.loading import ConfigError, describe_problems
from refrl.nearest import hint, meant


class Registry:
    """The parts of one kind by name."""

    def __init__(self, what: str, group: str, built_in: Mapping[str, Any]) -> None:
        """Name the kind.

        Args:
            what: for messages, such as `loss`.
            group: of entry points, such as `refrl.losses`.
            built_in: by name `module:attribute`, or the object itself; a built-in name cannot be taken by others.
        """
        self.what = what
        self.group = group
        self._built_in = built_in

    def names(self) -> list[str]:
        """Return the names of all built-in and installed parts."""
        return sorted({*self._built_in, *(point.name for point in self._entry_points())})

    def is_built_in(self, name: str) -> bool:
        """Return whether a name is one of refrl's."""
        return name in self._built_in

    def find(self, name: str, key: str) -> Any:
        """Return the object with a name.

        Args:
            name: built in, offered by an entry point, or `package.module:attribute`.
            key: the dotted option that names it, for messages.

        Raises:
            ConfigError: no part has the name, several packages offer it, or its module cannot be imported.
        """
        if name in self._built_in:
            known = self._built_in[name]
            return import_object(known, key) if isinstance(known, str) else known
        if ":" in name:  # to look for entry points is to read the metadata of every installed package
            return import_object(name, key)
        points = [point for point in self._entry_points() if point.name == name]
        if len({point.value for point in points}) > 1:
            packages = ", ".join(sorted(_package(point) for point in points))
            raise ConfigError(
                f"{key}={name}: several packages offer it ({packages}); name one by import path, {points[0].value}"
            )
        if points:
            return import_object(points[0].value, f"{key}={name} (of {_package(points[0])})")
        raise ConfigError(
            f"{key}={name!r} is unknown; {hint(name, self.names())}; name a custom {self.what} by its import "
            "path, package.module:name"
        )

    def _entry_points(self) -> metadata.EntryPoints:
        return metadata.entry_points(group=self.group)


def import_object(path: str, key: str) -> Any:
    """Return the object that `package.module:attribute` names; the current folder is searched last.

    Raises:
        ConfigError: the module cannot be imported, for any reason, or does not have the attribute.
    """
    module_name, _, attribute = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # a module of the user's may raise anything while it loads
        raise ConfigError(_import_failure(path, module_name, key, error)) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            public = [known for known in dir(found) if not known.startswith("_")]
            raise ConfigError(
                f"{key}={path}: {module_name} has no {name!r}; {meant(name, public)}".rstrip("; ")
            )
        found = getattr(found, name)
    return found


def _import_failure(path: str, module_name: str, key: str, error: Exception) -> str:
    missing = isinstance(error, ModuleNotFoundError) and error.name is not None
    if missing and (module_name == error.name or module_name.startswith(f"{error.name}.")):  # type: ignore[attr-defined]
        return (
            f"{key}={path}: there is no module {error.name!r}; "  # type: ignore[attr-defined]
            "start the command in its folder, put the folder on PYTHONPATH, or install its package"
        )
    return f"{key}={path}: importing {module_name} failed with {type(error).__name__}: {error}"


def _package(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unnamed package"


OptionsT = TypeVar("OptionsT", bound=BaseModel)


class NoOptions(Section):
    """The schema of a part without options."""


def parse_options(schema: type[OptionsT], options: Mapping[str, Any], key: str) -> OptionsT:
    """Return the options as an instance of their schema.

    Args:
        schema: of the part.
        options: as configured.
        key: their key in the configuration, for messages.

    Raises:
        ValueError: one line that names each dotted key at fault.
    """
    try:
        return schema.model_validate_json(json.dumps(dict(options)), strict=True)
    except ValidationError as error:
        if not schema.model_fields:
            raise ValueError(f"{key}.{next(iter(options))} is unknown; there are no options") from error
        raise ValueError(describe_problems(schema, error, prefix=f"{key}.")) from error
