"""NeMo RL's packers of sequences, from whichever checkout is on the path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from seatrial.relations.contracts.packs import Segment
from seatrial.targets.nemo_rl.parts import part


class Packer:
    """`get_packer` by the name of its algorithm."""

    rows_beyond_the_width: Literal["refused", "cut", "split"] = "refused"
    algorithm = "modified_first_fit_decreasing"

    def __init__(self) -> None:
        """Find the packers."""
        self.get_packer = part("data.packing.algorithms").get_packer

    def plan_packs(self, lengths: Sequence[int], width: int) -> Sequence[Sequence[Segment]]:
        bins = self.get_packer(self.algorithm, width).pack(list(lengths))
        return [[Segment(row, 0, lengths[row]) for row in rows] for rows in bins]


class ConcatenativePacker(Packer):
    """Rows in their order."""

    algorithm = "concatenative"


class FirstFitPacker(Packer):
    """First fit, longest first."""

    algorithm = "first_fit_decreasing"


class ShufflePacker(Packer):
    """First fit of shuffled rows."""

    algorithm = "first_fit_shuffle"
