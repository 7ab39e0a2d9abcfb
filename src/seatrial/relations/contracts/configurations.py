"""Contract of classes of options: configurations of models, adapters, trainers and plugins.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, kw_only=True)
class OlderForm:
    """Options by the names that older files have, and the same options by their present names."""

    older: Mapping[str, Any]
    newer: Mapping[str, Any]
    """Of an option that is a mapping, the entries that the older options give."""


@dataclass(frozen=True, kw_only=True)
class OptionClass:
    """A class of options of the installed release."""

    name: str
    make: Callable[..., Any]
    """(**options) -> an object; it may refuse a value with any exception."""
    options: Callable[[Any], Mapping[str, Any]]
    """(object) -> its options by name, without those that only note where it was made."""
    defaults: Mapping[str, Any]
    """Options with which an object is made at all."""
    reload: Callable[[Any], Any] | None = None
    """(object) -> the object that is read from its files; None where the class has no files."""
    documented: Mapping[str, str] = field(default_factory=dict)
    """Defaults as the documentation writes them, by option."""
    written: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of the signature, by option."""
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values of options whose type is one of several texts, or whose default does not show the documented type."""
    older: Sequence[OlderForm] = ()
    """Older forms of options that the class reads."""
    keywords: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values of arguments that the class reads and that are no options of it, of which one acts at least."""


@runtime_checkable
class Configurations(Protocol):
    """Every class of options of a library."""

    @property
    def option_classes(self) -> Sequence[OptionClass]:
        """Return the classes of the installed release."""
        ...

    def options_allowed(self, law: str) -> Mapping[str, str]:
        """Return why a law leaves out an option, by `Class.option`, or by `Class` for all of its options."""
        ...
