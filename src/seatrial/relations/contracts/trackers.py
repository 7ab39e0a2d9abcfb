"""Contract of trackers: what a training loop logs reaches the client of a service.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TrackedPlan(Case):
    """What a loop gives to a tracker, in this order."""

    settings: Values = field(default_factory=dict)
    """The configuration of the run, before the first step."""
    logged: tuple[tuple[Values, int | None], ...] = ()
    """Values with their step; None: the loop names no step."""
    images: tuple[tuple[str, int, int | None], ...] = ()
    """The name, the number of images, and the step."""
    tables: tuple[tuple[str, int | None], ...] = ()
    """The name of a table of two columns and two rows, and the step."""
    client_options: bool = False
    """Whether the client is given an option when it is made, and one for each call that logs."""
    seed: int = 0


class Tracked(NamedTuple):
    """What the client of the service got."""

    values: Sequence[tuple[str, Any, int | None]]
    """Name, value, and step; None: without a step."""
    settings: Values
    images: Sequence[tuple[str, int, int | None]]
    tables: Sequence[tuple[str, Sequence[Any], Sequence[Any], int | None]]
    """Name, columns, rows, and step."""
    options: Values
    """`made` and `logged`: what the client got of its options."""
    ended: bool
    """Whether the client was closed, once."""
    changed: Sequence[str] = ()
    """Names of what the loop gave and finds changed in its own settings and values."""


@runtime_checkable
class Tracker(Protocol):
    """The tracker of one service."""

    counts_steps: bool
    """Whether its client counts steps by itself where none is named."""
    drops_texts: bool
    """Whether it keeps numbers alone, as its documentation says."""
    draws_images: bool
    """Whether it logs several images under one name."""
    draws_tables: bool
    takes_options: bool
    """Whether a call that logs passes options to the client."""

    def tracked(self, plan: TrackedPlan) -> Tracked:
        """Run a loop of one process that logs, and return what the client got."""
        ...
