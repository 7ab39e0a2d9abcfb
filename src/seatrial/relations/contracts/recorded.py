"""Contract of models whose logits are on record: what no other form of the same model can show.

Part of `seatrial.relations.contracts`, which lists every component. Forms of one model: `ModelFamily`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class RecordedModel(Protocol):
    """A family's tiny model, its weights drawn by their names, with a few options at other values."""

    recorded: Mapping[str, Sequence[float]]
    """Projections of logits that were recorded, by the option; the empty name: the model without any."""

    def projections(self, name: str) -> Sequence[float]:
        """Return the projections of the logits of an option.

        Raises:
            NotServed: the release has no such option.
        """
        ...
