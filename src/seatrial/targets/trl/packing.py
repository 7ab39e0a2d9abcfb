"""TRL's `pack_dataset`, whichever release is installed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from seatrial.relations.contracts.packs import Segment
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import Gone, find_name, release

LONGEST = 1000
"""Tokens of a row at most: an id gives its row and its place."""


class BestFit(KnowsFailures):
    """`pack_dataset` by best fit, which cuts a row that no pack holds."""

    rows_beyond_the_width: Literal["refused", "cut", "split"] = "cut"
    fills_packs = True
    strategy = "bfd"

    def __init__(self) -> None:
        """Find the function, and the strategy in it.

        Raises:
            Gone: the release has not both.
        """
        self.pack: Any = find_name("trl", ["trl.data_utils:pack_dataset"])
        if f'"{self.strategy}"' not in inspect.getsource(inspect.getmodule(self.pack) or self.pack):
            raise Gone(f"trl {release('trl')} has no strategy {self.strategy} of pack_dataset")
        if "it is split into multiple samples" in (inspect.getdoc(self.pack) or ""):  # 0.27 and 0.28
            self.rows_beyond_the_width = "split"

    def plan_packs(self, lengths: Sequence[int], width: int) -> Sequence[Sequence[Segment]]:
        from datasets import Dataset

        rows = [[row * LONGEST + place for place in range(length)] for row, length in enumerate(lengths)]
        packed = self.pack(Dataset.from_dict({"input_ids": rows}), width, self.strategy)
        return [list(_segments(ids)) for ids in packed["input_ids"]]


class Wrapped(BestFit):
    """`pack_dataset` that fills every pack to the brim."""

    rows_beyond_the_width: Literal["refused", "cut", "split"] = "split"
    strategy = "wrapped"


class BestFitSplit(BestFit):
    """`pack_dataset` by best fit, which continues in another pack a row that fits in none."""

    rows_beyond_the_width: Literal["refused", "cut", "split"] = "split"
    strategy = "bfd_split"


def _segments(ids: Sequence[int]) -> Iterator[Segment]:
    """Yield the runs of consecutive tokens of one row."""
    start = 0
    for place in range(1, len(ids) + 1):
        if place == len(ids) or ids[place] != ids[place - 1] + 1 or ids[place] % LONGEST == 0:
            row, first = divmod(ids[start], LONGEST)
            yield Segment(row, first, first + place - start)
            start = place
