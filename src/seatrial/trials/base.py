"""What a trial is, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from seatrial.evidence.origins import Import
from seatrial.evidence.redaction import Redactor
from seatrial.targets.base import Target
from seatrial.trials.results import TrialResult
from seatrial.verdict import Verdict

Say = Callable[[str], None]
"""Shows what the harness is waiting for; the text replaces the one before."""


@dataclass(kw_only=True)
class TrialContext:
    """One trial under way: where it works, what it tries, and how it reports."""

    directory: Path
    """Folder of its own, empty at the start."""
    target: Target
    seed: int
    overrides: Sequence[str]
    """`a.b=value` words for the training command."""
    timeout_seconds: float
    """Time limit of each command."""
    environment: Mapping[str, str]
    redactor: Redactor
    say: Say
    result: TrialResult
    """What is known of it so far; the trial adds its commands, model and limitations."""
    save: Callable[[], None]
    """Writes `results.json` with the result as it stands."""
    imports: list[Import] = field(default_factory=list)
    """What the processes of its commands were seen importing."""

    def record(self, *verdicts: Verdict) -> None:
        """Add verdicts, and write the results after each."""
        for verdict in verdicts:
            self.result.verdicts.append(verdict)
            self.save()


class Trial(Protocol):
    """One deliverable of one coverage level."""

    name: str
    level: int
    summary: str
    proves: str
    does_not_prove: str

    def run(self, context: TrialContext) -> None:
        """Prepare, launch, collect, sense: record each verdict in the context.

        Raises:
            BlockedError: the environment prevents the trial; what was recorded stays.
        """
        ...
