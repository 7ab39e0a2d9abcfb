"""Level 1 on the reference stack: adapters, checkpoints, and a resume that loses nothing."""

import json
from pathlib import Path

import pytest

from seatrial.evidence.identity.redaction import Redactor
from seatrial.faults.launch import entry
from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.base import Trial
from seatrial.trials.checkpointing import CheckpointSave, GrpoLora
from seatrial.trials.results import TrialResult
from seatrial.trials.resume_diamond import SftResumeDiamond
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request, new_results, run_trials
from seatrial.verdict import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("forked_processes")]


def tried(folder: Path, trial: Trial, fault: str | None = None) -> TrialResult:
    """Return what a trial of the reference stack concludes, with a fault planted or without."""
    target = ReferenceTarget() if fault is None else ReferenceTarget(entry=entry(fault))
    request = Request(trials=[trial], words="level 1", seed=0, overrides=(), timeout_seconds=120.0)
    with RunDirectory.create(folder, target.name) as directory:
        results = new_results(directory, target, request, Redactor())
        run_trials(directory, results, target, request, lambda text: None)
    (result,) = results.requested_trials()
    return result


@pytest.mark.parametrize(
    "trial",
    [GrpoLora(), CheckpointSave(), pytest.param(SftResumeDiamond(), marks=pytest.mark.nightly)],
    ids=lambda trial: trial.name,
)
def test_level_1_passes_on_the_reference_stack(tmp_path: Path, trial: Trial) -> None:
    """With every claim proved."""
    result = tried(tmp_path, trial)
    wrong = [
        f"{verdict.name}: {verdict.reason}" for verdict in result.verdicts if verdict.outcome is Outcome.FAIL
    ]
    assert not wrong
    assert result.outcome is Outcome.PASS, json.dumps([verdict.name for verdict in result.verdicts])
    assert result.key_verdicts
