"""The adapter of the worked examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.accelerate.worked.files import FILE_ROWS
from seatrial.targets.accelerate.worked.launched import LAUNCH_ROWS
from seatrial.targets.accelerate.worked.placed import PLACED_ROWS
from seatrial.targets.accelerate.worked.plugins import PLUGIN_ROWS
from seatrial.targets.accelerate.worked.several import SEVERAL_ROWS
from seatrial.targets.accelerate.worked.states import STATE_ROWS
from seatrial.targets.accelerate.worked.steps import STEP_ROWS
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.worked_rows import Row, examples

ROWS: Sequence[Row] = (
    *LAUNCH_ROWS,
    *PLUGIN_ROWS,
    *PLACED_ROWS,
    *FILE_ROWS,
    *STEP_ROWS,
    *STATE_ROWS,
    *SEVERAL_ROWS,
)


class Worked(KnowsFailures):
    """Functions of Accelerate on worked examples; see `contracts.worked`."""

    thorough = True
    worked_rows = ROWS
    worked_subjects = frozenset(row.subject for row in ROWS)

    def worked_examples(self, subject: str) -> Sequence[WorkedExample]:
        """Return the examples of a subject."""
        return examples("accelerate", ROWS, subject)


ADAPTERS: dict[str, type[Any]] = {"worked": Worked}
