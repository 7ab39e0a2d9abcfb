"""Contract of runs whose ranks something else may have started: the stack's launcher, torchrun, Ray.

Part of `seatrial.relations.contracts`, which lists every component. Options are those of `contracts.run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from seatrial.relations.records.run import RunRecord


class PlacedRun(NamedTuple):
    """A run of several ranks."""

    record: RunRecord
    placed_by: str
    """What started its ranks, as the run says of itself."""


@runtime_checkable
class Placements(Protocol):
    """Short runs of the real loop on two ranks that are started in more than one way."""

    def placements(self) -> Sequence[str]:
        """Return the placements by name, as a run reports them; the others are compared with the first.

        A placement that this environment does not have is left out; `absent_placements`, may give the reason.
        """
        ...

    def placed_run(self, options: Mapping[str, Any], *, seed: int) -> PlacedRun:
        """Run the loop on two ranks that are started as `options["placement"]` says.

        Args:
            options: dotted names, and `placement`, one of `placements`.
            seed: of everything that the run draws.

        Raises:
            ImportError: what starts them in this way is not installed.
        """
        ...
