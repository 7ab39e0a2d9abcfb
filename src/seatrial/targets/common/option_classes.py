"""Classes of options of any library: their documented defaults and their fields."""

from __future__ import annotations

import dataclasses
import inspect
import re
import tempfile
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from seatrial.relations.contracts.configurations import OptionClass
from seatrial.relations.laws.options.configurations import documented_default
from seatrial.targets.common.trainers import temporary_folder

ENTRY = re.compile(r"^([ \t]*)`{0,2}(\w+)`{0,2} ?\(([^\n]*)\) ?:(.*)$")
"""The line of an option in a docstring: its place, its name, its type, and what may follow."""
OPTIONAL = re.compile(r", *\*?(?:optional|defaults)\b")
"""What follows a type in the line of an option."""
NUMBERS: Mapping[str, Any] = {"int": 3, "float": 0.25, "bool": True}
"""A value of each type."""


def documented_defaults(found: type[Any]) -> dict[str, str]:
    """Return the defaults that the docstring and the help texts of a class name, by option."""
    given: dict[str, str] = {}
    for entry, deeper in _entries(found):
        if default := documented_default(entry[3]) or documented_default(" ".join([entry[4], *deeper])):
            given.setdefault(entry[2], default)
    for one in dataclasses.fields(found) if dataclasses.is_dataclass(found) else ():
        if default := documented_default(str(one.metadata.get("help", ""))):
            given.setdefault(one.name, default)
    return given


def _entries(found: type[Any]) -> Iterator[tuple[re.Match[str], Iterator[str]]]:
    """Yield each option of a class's docstring, with the lines that are indented further than its own."""
    lines = (inspect.getdoc(found) or "").splitlines()
    for place, entry in enumerate(map(ENTRY.match, lines)):
        if entry is not None:
            yield entry, _indented_more(lines[place + 1 :], entry[1])


def _indented_more(lines: Sequence[str], indent: str) -> Iterator[str]:
    """Return the lines up to the first that is not indented further."""
    return takewhile(lambda line: line.startswith(f"{indent} "), lines)


def written_defaults(found: type[Any]) -> dict[str, Any]:
    """Return the defaults of a class's signature, those of factories made."""
    given = {
        name: one.default
        for name, one in inspect.signature(found).parameters.items()
        if one.default is not inspect.Parameter.empty
    }
    for one in dataclasses.fields(found) if dataclasses.is_dataclass(found) else ():
        if one.name in given and one.default_factory is not dataclasses.MISSING:
            given[one.name] = one.default_factory()
    return given


def numbers_of(found: type[Any]) -> dict[str, Sequence[Any]]:
    """Return a value of each option that the docstring says is a number or a switch."""
    types = {entry[2]: OPTIONAL.split(entry[3])[0].strip("`: ") for entry, _ in _entries(found)}
    return {name: [NUMBERS[one]] for name, one in types.items() if one in NUMBERS}


def texts_of(found: type[Any]) -> dict[str, Sequence[str]]:
    """Return the values of options whose type is a `Literal` of texts."""
    try:
        hints = typing.get_type_hints(found)
    except Exception:  # noqa: BLE001  a type that the release names and does not have here
        return {}
    return {name: values for name, hint in hints.items() if (values := _literals(hint))}


def _literals(hint: Any) -> list[str]:
    inner = [
        value for part in typing.get_args(hint) for value in _literals(part) if not isinstance(part, str)
    ]
    own = [value for value in typing.get_args(hint) if isinstance(value, str)]
    return (own if typing.get_origin(hint) is typing.Literal else []) + inner


def option_class(
    found: type[Any],
    *,
    options: Callable[[Any], Mapping[str, Any]],
    reload: Callable[[Any], Any] | None = None,
    make: Callable[..., Any] | None = None,
    **defaults: Any,
) -> OptionClass | None:
    """Return a class as laws read it, None if it cannot be made with these options."""
    make = make or found
    try:
        written = written_defaults(found)
        options(make(**defaults))
    except Exception:  # noqa: BLE001  it needs more than these options, or another package
        return None
    return OptionClass(
        name=found.__name__,
        make=make,
        options=options,
        defaults=defaults,
        reload=reload,
        documented=documented_defaults(found),
        written=written,
        values={**numbers_of(found), **texts_of(found)},
    )


def reloaded(value: Any) -> Any:
    """Return an object that is saved and read with `save_pretrained` and `from_pretrained`."""
    with tempfile.TemporaryDirectory(dir=temporary_folder()) as folder:
        value.save_pretrained(folder)
        return type(value).from_pretrained(folder)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass's object that its signature has."""
    return {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.init}


def classes_of(modules: Sequence[Any], accepts: Callable[[type[Any]], bool]) -> list[type[Any]]:
    """Return the classes of modules that are accepted, each once, by name."""
    found: dict[str, type[Any]] = {}
    for module in modules:
        for name in dir(module):
            try:
                value = getattr(module, name, None) if not name.startswith("_") else None
            except (ImportError, RuntimeError):  # its module needs another package
                continue
            if inspect.isclass(value) and accepts(value):
                found.setdefault(value.__name__, value)
    return [found[name] for name in sorted(found)]
