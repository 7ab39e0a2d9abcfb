"""Contract of models whose outputs are on record: what no other form of the same model can show.

Part of `seatrial.relations.contracts`, which lists every component. Forms of one model: `ModelFamily`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class RecordedModel(Protocol):
    """A tiny model, its weights drawn by their names, with options at other values; or configurations."""

    recorded: Mapping[str, Sequence[float]]
    """Numbers that were recorded, by the option and the output; the empty name: logits without any option.

    The last number is the scale of the others.
    """

    def projections(self, name: str) -> Sequence[float]:
        """Return the numbers of an option and an output.

        A stack whose `is_of_the_line` is true has a record of the line of the installed release. What is on record
        and not served is then broken, unless it is `Absent`.

        Raises:
            Absent: the release has no such option, or a package is missing.
            NotServed: the call is refused, raises, or has no finite numbers.
        """
        ...
