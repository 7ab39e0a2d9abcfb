"""`python -m seatrial.faults.engine FAULT DESCRIPTOR`: run a generation engine's process with a planted fault."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

from seatrial.faults.launch import edits
from seatrial.faults.planting import plant


def main(words: Sequence[str]) -> None:
    """Plant the fault before refrl is imported, then serve."""
    fault_id, descriptor = words
    plant(edits()[fault_id])
    sys.argv = [sys.argv[0], descriptor]
    runpy.run_module("refrl.runtime.generator_process", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
