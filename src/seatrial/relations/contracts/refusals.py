"""Contract of what a stack refuses: inputs that it would compute something else with.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A call that a stack must refuse, or one next to it that it must accept."""

    what: str
    """The part that is called, and its input."""
    call: Callable[[], object]
    says: str | None
    """Word of the error; None: the call must be accepted."""


@runtime_checkable
class Refusals(Protocol):
    """Calls of a stack's parts with inputs at and beyond their limits."""

    def trials(self) -> Sequence[Trial]:
        """Return the calls; each may be made once."""
        ...
