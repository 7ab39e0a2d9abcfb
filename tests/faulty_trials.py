"""Runs of the reference stack's trials with a planted fault, shared by tests of several environments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seatrial.evidence.identity.redaction import Redactor
from seatrial.faults.claims import FaultyRun
from seatrial.faults.launch import entry
from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.plan import select_trials
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request, new_results, run_trials
from seatrial.verdict import Outcome


def failed_checks(one: FaultyRun, folder: Path, overrides: Sequence[str] = ()) -> set[str]:
    """Return the names of the checks that fail in a trial with its fault planted.

    Args:
        one: the trial and the fault.
        folder: of the run directory.
        overrides: options of the trial.
    """
    target = ReferenceTarget(entry=entry(one.fault))
    asked = Request(
        trials=select_trials(None, [one.trial]),
        words=one.trial,
        seed=0,
        overrides=tuple(overrides),
        timeout_seconds=600.0,
    )
    with RunDirectory.create(folder, target.name) as directory:
        results = new_results(directory, target, asked, Redactor())
        run_trials(directory, results, target, asked, lambda text: None)
    (result,) = results.requested_trials()
    return {verdict.name for verdict in result.verdicts if verdict.outcome is Outcome.FAIL}
