"""The adapter of the worked examples, and the public names that they judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.trl.worked import given, kept, limits, passed
from seatrial.targets.trl.worked.callbacks import CALLBACKS
from seatrial.targets.trl.worked.collected import COLLECTED_ROWS
from seatrial.targets.trl.worked.commands import COMMANDS
from seatrial.targets.trl.worked.contexts import CONTEXT_ROWS
from seatrial.targets.trl.worked.conversations import CONVERSATION_ROWS
from seatrial.targets.trl.worked.data import DATA_ROWS
from seatrial.targets.trl.worked.distilled import DISTILLED_ROWS
from seatrial.targets.trl.worked.earlier import EARLIER_ROWS
from seatrial.targets.trl.worked.evaluated import EVALUATED
from seatrial.targets.trl.worked.functions import FUNCTION_ROWS
from seatrial.targets.trl.worked.given import GIVEN
from seatrial.targets.trl.worked.heads import HEAD_ROWS
from seatrial.targets.trl.worked.judged import JUDGED_ROWS
from seatrial.targets.trl.worked.kept import KEPT
from seatrial.targets.trl.worked.launched import LAUNCHED
from seatrial.targets.trl.worked.limits import LIMITED
from seatrial.targets.trl.worked.losses import LOSSES
from seatrial.targets.trl.worked.models import MODEL_ROWS
from seatrial.targets.trl.worked.optimised import OPTIMISED
from seatrial.targets.trl.worked.outside import OUTSIDE
from seatrial.targets.trl.worked.passed import PASSED
from seatrial.targets.trl.worked.prepared import PREPARED
from seatrial.targets.trl.worked.refused import REFUSED_ROWS
from seatrial.targets.trl.worked.rows import Row, examples, of_release
from seatrial.targets.trl.worked.scored import SCORED
from seatrial.targets.trl.worked.scripts import SCRIPT_ROWS
from seatrial.targets.trl.worked.sets import SET_ROWS
from seatrial.targets.trl.worked.shown import SHOWN

ROWS: Sequence[Row] = (
    *DATA_ROWS,
    *CONVERSATION_ROWS,
    *FUNCTION_ROWS,
    *MODEL_ROWS,
    *HEAD_ROWS,
    *SCRIPT_ROWS,
    *REFUSED_ROWS,
    *DISTILLED_ROWS,
    *SET_ROWS,
)
USED = (
    "make_parser", "ScriptArguments", "GRPOScriptArguments", "RLOOScriptArguments", "DatasetConfig", "ModelConfig",
    "shutdown_event_loop_in_daemon", "FusedCausalLMOutput",
)  # fmt: skip
"""Public names without a row, which others' results are made with."""


class Worked(KnowsFailures):
    """Small functions of TRL, its scripts and its callbacks on worked examples; see `contracts.worked`."""

    worked_subjects = frozenset(row.subject for row in ROWS)

    def worked_examples(self, subject: str) -> Sequence[WorkedExample]:
        """Return the examples of a subject."""
        return examples(ROWS, subject)


OF_TRAINERS: Mapping[str, Callable[[], Sequence[Row]]] = {
    **LIMITED,
    **LAUNCHED,
    **COMMANDS,
    **GIVEN,
    **KEPT,
    **PASSED,
    **CALLBACKS,
    **EVALUATED,
    **SHOWN,
    **PREPARED,
    **LOSSES,
    **SCORED,
    **OUTSIDE,
    **OPTIMISED,
    "collected": partial(of_release, (*COLLECTED_ROWS, *CONTEXT_ROWS)),
    "earlier": partial(of_release, (*EARLIER_ROWS, *JUDGED_ROWS)),
}
"""What makes rows that run trainers or scripts, of what the installed release has, by adapter."""
FAILURES: Mapping[str, Sequence[KnownFailure]] = {
    **limits.FAILURES,
    **given.FAILURES,
    **kept.FAILURES,
    **passed.FAILURES,
}


class OfTrainers(KnowsFailures):
    """Runs of trainers whose results are known from one another, as worked examples."""

    thorough = True
    source: ClassVar[str]
    """Of `OF_TRAINERS`."""

    def __init__(self) -> None:
        """Make the rows.

        Raises:
            Gone: the release has nothing of it.
        """
        self._rows = OF_TRAINERS[self.source]()
        self.worked_subjects = frozenset(row.subject for row in self._rows)

    def worked_examples(self, subject: str) -> Sequence[WorkedExample]:
        """Return the examples of a subject."""
        return examples(self._rows, subject)


def _adapter(name: str) -> type[Any]:
    members = {
        "__doc__": f"Runs of trainers as worked examples: {name}.",
        "source": name,
        "known_failures": FAILURES.get(name, ()),
    }
    return type(f"OfTrainers{name.title().replace('-', '')}", (OfTrainers,), members)


ADAPTERS: dict[str, type[Any]] = {
    "worked": Worked,
    **{name: _adapter(name) for name in OF_TRAINERS},
}
