"""What a trial is, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from seatrial.evidence.identity.origins import Import
from seatrial.evidence.identity.redaction import Redactor
from seatrial.targets.base import Target
from seatrial.trials.results import TrialResult
from seatrial.trials.run_evidence import NOT_GIVEN
from seatrial.verdict import Outcome, Verdict


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One thing that a trial proves, and the verdicts that it rests on."""

    text: str
    verdicts: tuple[str, ...]
    """Names of verdicts; each must pass, or the claim is not proved."""


ShowProgress = Callable[[str], None]
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
    say: ShowProgress
    result: TrialResult
    """What is known of it so far; the trial adds its commands, model and limitations."""
    save: Callable[[], None]
    """Writes `results.json` with the current result."""
    imports: list[Import] = field(default_factory=list)
    """What the processes of its commands were seen importing."""

    def record(self, *verdicts: Verdict) -> None:
        """Add verdicts; they are written when the next command starts, and when the trial ends, however it does."""
        self.result.verdicts += verdicts

    def claim(self, *claims: Claim) -> None:
        """Record what this run of the trial proves, after its verdicts; a claim without evidence fails it.

        A claim that rests on evidence which the target does not give is not made: the limitations name it. If no claim
        is left, the trial is blocked.
        """
        held: list[Claim] = []
        for claim in claims:
            reasons = [
                str(verdict.details[NOT_GIVEN])
                for verdict in self.result.verdicts
                if verdict.name in claim.verdicts and NOT_GIVEN in verdict.details
            ]
            if reasons:
                self.result.limitations.append(f"not judged: {claim.text}: {reasons[0]}")
            else:
                held.append(claim)
        self.result.proves = "; ".join(claim.text for claim in held)
        self.result.key_verdicts = [name for claim in held for name in claim.verdicts]
        if claims and not held:
            reason = self.result.limitations[-1]
            self.record(Verdict(name="something is left to prove", outcome=Outcome.BLOCKED, reason=reason))
        for claim in held:
            verdict = unproved(claim, self.result.verdicts)
            if verdict is not None:
                self.record(verdict)


def unproved(claim: Claim, verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return a Fail for a claim that some of its verdicts give no answer to; None where they passed, failed or blocked.

    What failed or blocked says so itself. What was skipped, or never asked, leaves a claim without evidence: the run
    completed and did not leave what the claim needs.
    """
    for name in claim.verdicts:
        of_name = [verdict for verdict in verdicts if verdict.name == name]
        silent = [
            verdict for verdict in of_name if verdict.outcome in (Outcome.SKIPPED, Outcome.NOT_REQUESTED)
        ]
        if of_name and not silent:
            continue
        why = silent[0].reason if silent else "it was not asked"
        return Verdict(
            name=f"claim: {claim.text}",
            outcome=Outcome.FAIL,
            reason=f"no evidence: {name!r} gave no answer ({why}); change the run so that it can, such as a verifier "
            "whose rewards differ",
            bound="every verdict of the claim passes",
        )
    return None


class Trial(Protocol):
    """One deliverable of one coverage level."""

    name: str
    level: int
    summary: str
    proves: str
    """What it claims unless something limits the run; `TrialContext.claim` names the verdicts that it rests on."""
    does_not_prove: str

    def run(self, context: TrialContext) -> None:
        """Prepare, launch, collect, sense: record each verdict in the context.

        Raises:
            BlockedError: the environment prevents the trial; what was recorded stays.
        """
        ...
