"""The command `seatrial relations` around the battery itself."""

import gc
from collections.abc import Sequence

from seatrial.cli import main
from seatrial.relations.contracts.packs import Segment

FROZEN: list[int] = []


class Packs:
    """Puts each row into a pack of its own, and notes how many objects garbage collection leaves out."""

    rows_beyond_the_width = "cut"

    def plan_packs(self, lengths: Sequence[int], width: int) -> list[list[Segment]]:
        """Return the packs."""
        FROZEN.append(gc.get_freeze_count())
        return [[Segment(row, 0, min(length, width))] for row, length in enumerate(lengths)]


def test_what_was_alive_before_the_battery_is_not_collected_again_and_again() -> None:
    """A trainer collects garbage at every start; the import of its stack left hundreds of thousands of objects."""
    FROZEN.clear()
    main(["relations", f"{__name__}:Packs", "--relation", "R4.plan"])
    assert FROZEN
    assert min(FROZEN) > 10_000
    assert gc.get_freeze_count() == 0
