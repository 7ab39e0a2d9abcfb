"""The adapter of the worked examples of PEFT."""

from __future__ import annotations

from typing import Any

from seatrial.targets.common.worked_rows import Worked
from seatrial.targets.peft.worked import calls, files, functions, names, offers, states, tensors

ROWS = (*states.ROWS, *calls.ROWS, *files.ROWS, *functions.ROWS, *names.ROWS, *tensors.ROWS, *offers.ROWS)


class OfPEFT(Worked):
    """Models of PEFT, their files and functions; see `contracts.worked`."""

    package = "peft"
    worked_rows = ROWS


ADAPTERS: dict[str, type[Any]] = {"worked": OfPEFT}
