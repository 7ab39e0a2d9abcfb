"""What the installed release's code names: the scalars that a trainer logs, and the choices of its options.

The sources are the modules of the trainer's and the configuration's classes, with their comments and docstrings. A
name is a quoted text there: `"entropy"`, an f-string that ends with it, or one with the same parts between slashes.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

CHOICES = ("loss_type", "f_divergence_type", "importance_sampling_level", "scale_rewards", "truncation_mode")
"""Options of TRL that take one of a few words."""


def unnamed_scalars(names: Iterable[str], *classes: type) -> frozenset[str]:
    """Return those of these scalars that the code of these classes does not name."""
    return frozenset(name for name in names if not _is_named(name, classes))


def unknown_choices(options: Mapping[str, Any], *classes: type) -> list[str]:
    """Return `option=word` for each word of `CHOICES` that the code of these classes does not name."""
    found = []
    for option in CHOICES:
        value = options.get(option)
        words = value if isinstance(value, list) else [value]
        found += [
            f"{option}={word}" for word in words if isinstance(word, str) and not _quotes(word, classes)
        ]
    return found


def _is_named(name: str, classes: Iterable[type]) -> bool:
    return _quotes(name, classes) or _quotes_parts(name, classes)


def _quotes(word: str, classes: Iterable[type]) -> bool:
    """Return whether a text in quotes is this word, or an f-string's end after a value."""
    return any(re.search(rf"[\"'`}}]{re.escape(word)}[\"'`]", source) for source in sources(classes))


def _quotes_parts(name: str, classes: Iterable[type]) -> bool:
    """Return whether an f-string has the name's parts, some of them as values: `f"rewards/{function}/mean"`."""
    value = r"\{[^{}\"']*\}"
    parts = name.split("/")
    if len(parts) == 1:
        return False
    pattern = "/".join(rf"(?:{re.escape(part)}|{value})" for part in parts)
    found = (
        one.group() for source in sources(classes) for one in re.finditer(rf"[\"'`}}]{pattern}[\"'`]", source)
    )
    return any(re.search(rf"(?:^.|/){re.escape(part)}(?:/|.$)", text) for text in found for part in parts)


def sources(classes: Iterable[type]) -> list[str]:
    """Return the sources of the modules of these classes and of those that they extend."""
    modules = {base.__module__ for one in classes for base in inspect.getmro(one)}
    own = sorted(name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names)
    return [_source(module) for module in own]


@cache
def _source(module: str) -> str:
    return inspect.getsource(importlib.import_module(module))
