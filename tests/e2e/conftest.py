"""Real runs of the reference stack, on one tiny model made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from refrl.models.tiny import TinyModelSpec, make_model
from seatrial.evidence.identity.redaction import Redactor
from seatrial.targets.base import Target
from seatrial.trials.base import Trial
from seatrial.trials.results import TrialResult
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request, new_results, run_trials

RunTrial = Callable[[Target, Trial, Sequence[str]], TrialResult]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level model with random weights."""
    output = tmp_path_factory.mktemp("model") / "tiny"
    make_model(TinyModelSpec(), output)
    return output


@pytest.fixture
def run_trial(tmp_path: Path, tiny_model: Path) -> RunTrial:
    """Return a function that takes a target through one trial on the tiny model."""

    def run(target: Target, trial: Trial, overrides: Sequence[str]) -> TrialResult:
        request = Request(
            trials=[trial],
            words=trial.name,
            seed=0,
            overrides=(f"policy.model_name={tiny_model}", *overrides),
            timeout_seconds=300,
        )
        with RunDirectory.create(tmp_path, target.name) as directory:
            results = new_results(directory, target, request, Redactor())
            run_trials(directory, results, target, request, lambda text: None)
        return next(result for result in results.requested_trials())

    return run
