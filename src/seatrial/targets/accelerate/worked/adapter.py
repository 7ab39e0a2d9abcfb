"""The adapter of the worked examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.targets.accelerate.worked.files import FILE_ROWS
from seatrial.targets.accelerate.worked.launched import LAUNCH_ROWS
from seatrial.targets.accelerate.worked.loaders import LOADER_ROWS
from seatrial.targets.accelerate.worked.placed import PLACED_ROWS
from seatrial.targets.accelerate.worked.plugins import PLUGIN_ROWS
from seatrial.targets.accelerate.worked.several import SEVERAL_ROWS
from seatrial.targets.accelerate.worked.states import STATE_ROWS
from seatrial.targets.accelerate.worked.steps import STEP_ROWS
from seatrial.targets.common.worked_rows import Row, Worked

ROWS: Sequence[Row] = (
    *LAUNCH_ROWS,
    *PLUGIN_ROWS,
    *PLACED_ROWS,
    *FILE_ROWS,
    *STEP_ROWS,
    *STATE_ROWS,
    *SEVERAL_ROWS,
    *LOADER_ROWS,
)


class OfAccelerate(Worked):
    """Functions of Accelerate on worked examples; see `contracts.worked`."""

    package = "accelerate"
    worked_rows = ROWS


ADAPTERS: dict[str, type[Any]] = {"worked": OfAccelerate}
