"""refrl's worked examples by subject, offered to the relations."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from seatrial.relations.contracts.worked import WorkedExample


class ReferenceExamples:
    """See `seatrial.relations.contracts.worked`."""

    def worked_examples(self, subject: str) -> Sequence[WorkedExample]:
        # Modules of files and processes take time to import, and other relations do without.
        return tuple(import_module(f"{__package__}.{subject}").examples())
