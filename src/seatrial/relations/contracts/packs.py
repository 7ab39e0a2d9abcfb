"""Contract of how rows are laid into packs, or into micro-batches of at most so many tokens.

Part of `seatrial.relations.contracts`, which lists every component. What a model makes of a pack: `Packing` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable


class Segment(NamedTuple):
    """Tokens `start` to `stop` (excluded) of a row."""

    row: int
    start: int
    stop: int


@runtime_checkable
class PackPlan(Protocol):
    """Lengths of rows and a width to packs.

    A stack that opens a pack only where a row fits into no other one sets `fills_packs = True`.
    """

    rows_beyond_the_width: Literal["refused", "cut", "split"]
    """`cut` keeps the first tokens of such a row; `split` continues it in another pack, and may split rows that fit."""

    def plan_packs(self, lengths: Sequence[int], width: int) -> Sequence[Sequence[Segment]]:
        """Return the segments of each pack in their order; no pack holds more than `width` tokens.

        Raises:
            Exception: of any kind, where a row is longer than a pack and is refused.
        """
        ...
