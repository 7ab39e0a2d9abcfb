"""Worked examples of written values: constants of modules, and what functions and classes take by default."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

from pydantic import BaseModel

from seatrial.packaged import read_table
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.kernels import made_triton
from seatrial.targets.reference.worked.made import example
from seatrial.targets.reference.worked.made_packages import imported_with
from seatrial.targets.reference.worked.made_ray import Cluster

_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
PLAIN = (bool, int, float, str, type(None))
LEFT_OUT = ("TYPE_CHECKING", "COMMAND")
"""Constants that are not compared: how processes are started differs where a fault is planted in them too."""

NEEDS: Mapping[str, Sequence[str]] = {
    "ray": (
        "refrl.data_plane.ray",
        "refrl.data_plane.transfer_queue",
        "refrl.generation.ray_link",
    ),
    "triton": ("refrl.algorithms.chunked_triton", "refrl.generation.static.triton_ops"),
}
"""Modules that are imported with stand-ins for their packages."""


def of_values(package: str = "") -> Iterator[WorkedExample]:
    """Yield an example of each module of a package, or of those that a plain run has the packages of."""
    for module, right in _table().items():
        if _package(module) == package:
            yield example(f"written values of {module}", right, values_of, module)


def _package(module: str) -> str:
    """Return what is imported only by the runs that use a module, if there is any such thing."""
    return next((name for name in ("megatron", "dtensor", "vllm") if f".{name}" in module), "")


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    table: Mapping[str, Mapping[str, Any]] = read_table("seatrial.targets.reference", "tables", "values.yaml")
    return table


def values_of(name: str) -> dict[str, Any]:
    """Return plain values by the name of their constant, `function.parameter` or `Class.attribute`."""
    if not any(name in modules for modules in NEEDS.values()):
        return dict(_values(importlib.import_module(name)))
    made = made_triton() if name in NEEDS["triton"] else Cluster().modules()
    with imported_with(made, [name]) as (module,):
        return dict(_values(module))


def _values(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if _CONSTANT.fullmatch(name) and name not in LEFT_OUT:
            yield from _plain(name, value)
        elif getattr(value, "__module__", None) == module.__name__:
            if isinstance(value, type):
                yield from _of_class(value)
            else:
                yield from _defaults(name, value)


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    if issubclass(kind, BaseModel | BaseException):
        return  # tables/defaults.yaml has the options
    for name, value in vars(kind).items():
        if not name.startswith("_") and not is_dataclass(kind):
            yield from _plain(f"{kind.__name__}.{name}", value)
        if name == "__init__" or not name.startswith("__"):
            yield from _defaults(f"{kind.__name__}.{name}", getattr(value, "__func__", value))


def _defaults(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    function = inspect.unwrap(value) if callable(value) else None
    if not isinstance(function, FunctionType):
        return
    code = function.__code__
    taken = code.co_varnames[: code.co_argcount]
    last = function.__defaults__ or ()
    for parameter, default in zip(taken[len(taken) - len(last) :], last, strict=True):
        yield from _plain(f"{name}.{parameter}", default)
    for parameter, default in (function.__kwdefaults__ or {}).items():
        yield from _plain(f"{name}.{parameter}", default)


def _plain(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value that YAML holds: collections as lists, patterns as their text and flags."""
    if isinstance(value, re.Pattern):
        yield name, [value.pattern, int(value.flags)]
    elif isinstance(value, list | dict | set) and not value:
        return  # filled while the process runs
    elif isinstance(value, tuple | list | set | frozenset):
        held = sorted(value) if isinstance(value, set | frozenset) and _is_plain(list(value)) else list(value)
        if _is_plain(held):
            yield name, [_as_list(one) for one in held if one != sys.executable]
    elif isinstance(value, Mapping):
        if value and all(isinstance(key, str) and _is_plain([one]) for key, one in value.items()):
            yield name, {key: _as_list(one) for key, one in value.items()}
    elif type(value) in PLAIN:
        yield name, value


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _is_plain(held: list[Any]) -> bool:
    return all(
        type(one) in PLAIN or (isinstance(one, tuple) and all(type(part) in PLAIN for part in one))
        for one in held
    )
