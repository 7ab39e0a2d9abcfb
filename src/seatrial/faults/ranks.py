"""`python -m seatrial.faults.ranks FAULT CONFIG OUTPUT`: one rank of a recorded run, with a planted fault."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from seatrial.faults.launch import edits
from seatrial.faults.planting import plant


def main(words: Sequence[str]) -> None:
    """Plant before refrl is imported, and run."""
    plant(edits()[words[0]])
    from seatrial.targets.reference import ranks

    ranks.main(words[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
