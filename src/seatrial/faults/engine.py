"""`python -m seatrial.faults.engine EDIT DESCRIPTOR`: run a generation engine's process with a planted fault.

EDIT is a `seatrial.faults.planting.Change` as JSON. Nothing beyond the standard library is imported before refrl.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Sequence
from typing import NamedTuple

from seatrial.faults.planting import plant


class Edit(NamedTuple):
    """A `seatrial.faults.planting.Change`."""

    id: str
    module: str
    old: str
    new: str


def main(words: Sequence[str]) -> None:
    """Plant the fault before refrl is imported, then serve."""
    edit, descriptor = words
    plant(Edit(**json.loads(edit)))
    sys.argv = [sys.argv[0], descriptor]
    runpy.run_module("refrl.runtime.generator_process", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
