"""The adapter of the worked examples, and the public names that they judge."""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.trl.worked.data import DATA_ROWS
from seatrial.targets.trl.worked.distilled import DISTILLED_ROWS
from seatrial.targets.trl.worked.functions import FUNCTION_ROWS
from seatrial.targets.trl.worked.models import MODEL_ROWS
from seatrial.targets.trl.worked.refused import REFUSED_ROWS
from seatrial.targets.trl.worked.rows import Row, examples
from seatrial.targets.trl.worked.scripts import SCRIPT_ROWS

ROWS: Sequence[Row] = (*DATA_ROWS, *FUNCTION_ROWS, *MODEL_ROWS, *SCRIPT_ROWS, *REFUSED_ROWS, *DISTILLED_ROWS)
USED = (
    "make_parser", "ScriptArguments", "GRPOScriptArguments", "RLOOScriptArguments", "DatasetConfig", "ModelConfig",
    "shutdown_event_loop_in_daemon", "FusedCausalLMOutput",
)  # fmt: skip
"""Public names without a row, which others' results are made with."""


class Worked:
    """Small functions of TRL, its scripts and its callbacks on worked examples; see `contracts.worked`."""

    worked_subjects = frozenset(row.subject for row in ROWS)

    def worked_examples(self, subject: str) -> Sequence[WorkedExample]:
        """Return the examples of a subject."""
        return examples(ROWS, subject)
