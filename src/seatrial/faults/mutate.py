"""Plants one-line faults in refrl inside this process, and takes them out again.

A mutant names a module, a piece of its text, and what stands there instead. The changed module is loaded beside the
real one, and every reference to a function or class that it defines is turned to the changed one for the while.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A one-line fault, and what must see it."""

    id: str
    what: str
    """What is wrong with a stack that has it."""
    module: str
    """Module of refrl that is changed."""
    old: str
    """Text that stands exactly once in the module."""
    new: str
    relations: tuple[str, ...]
    """Ids of the relations that must fail."""
    catalogue: tuple[str, ...] = ()
    """Known bugs that this is one of (SBnnn)."""
    origin: str = "catalogue"
    """`catalogue`, or `harness` for the 42 mutants of the harness notes."""
    cell: Mapping[str, Any] | None = None
    """Options of refrl under which the fault is in the path; None for the default."""


@cache
def all_mutants() -> tuple[Mutant, ...]:
    """Return the mutants of every table in `seatrial/faults/mutants/`, in the order of their names."""
    found = []
    folder = resources.files("seatrial.faults").joinpath("mutants")
    for table in sorted(folder.iterdir(), key=lambda path: path.name):
        if table.name.endswith(".yaml"):
            for fields in yaml.safe_load(table.read_text(encoding="utf-8")):
                found.append(
                    Mutant(
                        **{
                            **fields,
                            "relations": tuple(fields["relations"]),
                            "catalogue": tuple(fields.get("catalogue", ())),
                        }
                    )
                )
    return tuple(found)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Plant a fault for the length of a `with` block.

    Raises:
        ValueError: the text does not stand exactly once in the module: the table is out of date.
    """
    real = importlib.import_module(mutant.module)
    changed = _load_changed(real, mutant)
    replacements = _replacements(real, changed)
    turned: list[tuple[Any, str, Any]] = []
    try:
        for holder in _holders():
            for name, value in list(vars(holder).items()):
                replacement = replacements.get(id(value))
                if replacement is not None:
                    setattr(holder, name, replacement)
                    turned.append((holder, name, value))
        yield
    finally:
        for holder, name, value in reversed(turned):
            setattr(holder, name, value)


def _load_changed(real: ModuleType, mutant: Mutant) -> ModuleType:
    assert real.__file__ is not None
    text = Path(real.__file__).read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(
            f"mutant {mutant.id}: its text stands {text.count(mutant.old)} times in {mutant.module}, not once"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(real.__file__).name
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(real.__name__, path)
        assert spec is not None
        assert spec.loader is not None
        changed = importlib.util.module_from_spec(spec)
        # Dataclasses and string annotations look their module up by name while it loads.
        sys.modules[real.__name__] = changed
        try:
            spec.loader.exec_module(changed)
        finally:
            sys.modules[real.__name__] = real
    return changed


def _holders() -> list[ModuleType]:
    """Return the loaded modules whose references are turned: refrl's, and the adapter that offers them."""
    names = ("refrl", "seatrial.targets.reference")
    return [
        module for name, module in list(sys.modules.items()) if module is not None and name.startswith(names)
    ]


def _replacements(real: ModuleType, changed: ModuleType) -> dict[int, Any]:
    """Return what stands for each function and class that the real module defines, by identity."""
    return {
        id(value): vars(changed)[name]
        for name, value in vars(real).items()
        if getattr(value, "__module__", None) == real.__name__
        and getattr(value, "__name__", None) == name
        and name in vars(changed)
    }
