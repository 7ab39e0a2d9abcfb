"""Each fault of the table of claims fails its trial at the named checks."""

from pathlib import Path

import pytest

from seatrial.evidence.identity.redaction import Redactor
from seatrial.faults.claims import FaultyRun, faulty_runs
from seatrial.faults.launch import entry
from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.generation import INTERPRETER
from seatrial.trials.plan import select_trials
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request, new_results, run_trials
from seatrial.verdict import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("forked_processes")]

ON_EVERY_COMMIT = {("grpo-smoke", "padding-seen-in-prefill"), ("grpo-lora", "reference-with-adapters")}
"""Quick ones, of a recipe's inputs and of a check; the others run at night."""


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(
            one,
            id=f"{one.trial}-{one.fault}",
            marks=[] if (one.trial, one.fault) in ON_EVERY_COMMIT else [pytest.mark.nightly],
        )
        for one in faulty_runs()
    ],
)
def test_the_trial_fails_at_the_checks(
    one: FaultyRun, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With the fault planted; vLLM samples in its own environment."""
    overrides: tuple[str, ...] = ()
    if one.trial == "generation-vllm":
        overrides = (f"{INTERPRETER}={request.getfixturevalue('peer_python')('vllm')}",)
    target = ReferenceTarget(entry=entry(one.fault))
    trials = select_trials(None, [one.trial])
    asked = Request(trials=trials, words=one.trial, seed=0, overrides=overrides, timeout_seconds=600.0)
    with RunDirectory.create(tmp_path, target.name) as directory:
        results = new_results(directory, target, asked, Redactor())
        run_trials(directory, results, target, asked, lambda text: None)
    (result,) = results.requested_trials()
    failed = [verdict.name for verdict in result.verdicts if verdict.outcome is Outcome.FAIL]
    assert set(one.breaks.values()) <= set(failed), failed
