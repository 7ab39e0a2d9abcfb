"""`python -m seatrial.faults.ranks FAULT [CONFIG OUTPUT | FOLDER]`: one rank with a planted fault, of a recorded run,
of a layout (`seatrial.targets.reference.layouts.training`), or of an adapter (see `seatrial.targets.common.ranks`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from seatrial.faults.launch import edits
from seatrial.faults.planting import plant


def main(words: Sequence[str]) -> None:
    """Plant the fault before refrl is imported, then run."""
    plant(edits()[words[0]])
    if len(words) == 2:
        from seatrial.targets.reference.layouts import training as layouts

        layouts.main(words[1:])
    elif words[1:]:
        from seatrial.targets.reference.runs import ranks

        ranks.main(words[1:])
    else:
        from seatrial.targets.common import rank_worker

        rank_worker.main()


if __name__ == "__main__":
    main(sys.argv[1:])
