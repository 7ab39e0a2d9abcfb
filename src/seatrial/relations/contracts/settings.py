"""Contract of settings that come from variables of the environment, where an argument does not give them.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One variable of one object, by the documentation; values are plain: text, numbers, truths, lists, None."""

    of: str
    """The object."""
    variable: str
    text: str
    """Of the variable."""
    field: str
    """Where the object has the value."""
    value: Any
    """With the variable."""
    default: Any
    """Without it."""
    given: Any
    """An argument, of another value than the variable's."""
    kept: Any = None
    """What the object has of the argument, where that is not the argument itself."""
    needs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables without which this one is not read."""


@runtime_checkable
class Settings(Protocol):
    """Objects that are made from variables and arguments."""

    settings: Sequence[Setting]
    """Those that the installed release has."""

    def settled(
        self, of: str, variables: Mapping[str, str], given: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """Return the plain values of an object's fields, made with these variables alone and these arguments.

        Variables that the object itself leaves in the environment stay for the next call.
        """
        ...

    def clear(self) -> None:
        """Remove what objects have left in the environment."""
        ...
