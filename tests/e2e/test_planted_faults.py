"""Each planted fault turns Pass into the right Fail or Blocked, and the right verdict says so."""

from pathlib import Path

import pytest
from tests.e2e.conftest import RunTrial

from seatrial.faults.catalogue import FAULTS, Expectation, Fault, get_fault
from seatrial.faults.launch import copy_of_refrl, entry
from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.grpo_smoke import GrpoSmoke
from seatrial.trials.learning_signal import LearningSignal
from seatrial.trials.results import TrialResult
from seatrial.verdict import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("forked_processes")]

SMOKE = ("grpo.max_num_steps=2", "grpo.val_at_start=false", "grpo.val_at_end=false")
LEARNING = (
    "data.verifier=byte_closeness",
    "grpo.max_num_steps=16",
    "grpo.num_prompts_per_step=8",
    "policy.train_global_batch_size=64",
    "policy.optimizer.lr=3e-3",
)
"""From random weights the nearness of bytes can be learnt at once, so that no warm-up is needed."""

ON_EVERY_COMMIT = ("rewards-shifted-between-rows",)
"""Of what is trained on; the others at night."""


def planted(fault_id: str, tmp_path: Path) -> ReferenceTarget:
    """Return the reference target with a fault planted."""
    if fault_id == "refrl-from-another-path":
        return ReferenceTarget(environment=copy_of_refrl(tmp_path / "copy"))
    return ReferenceTarget(entry=entry(fault_id))


def expectation(fault: Fault, trial: str) -> Expectation:
    """Return what a trial must say of a fault."""
    (found,) = [item for item in fault.expected if item.trial == trial]
    return found


def hold(result: TrialResult, expected: Expectation) -> None:
    """The trial's outcome is the expected one, and the named verdicts are the ones that say so."""
    assert result.outcome is expected.outcome, result.verdicts
    for check in expected.checks:
        named = [verdict for verdict in result.verdicts if verdict.name.startswith(check)]
        assert named, check
        assert {verdict.outcome for verdict in named} == {expected.outcome}, named


def test_without_a_fault_every_named_check_passes(run_trial: RunTrial) -> None:
    """Otherwise what follows would prove nothing."""
    result = run_trial(ReferenceTarget(), GrpoSmoke(), SMOKE)
    assert result.outcome is Outcome.PASS, result.verdicts
    checks = {check for fault in FAULTS.values() for check in expectation(fault, "grpo-smoke").checks}
    outcomes = {verdict.name: verdict.outcome for verdict in result.verdicts}
    assert {outcomes[check] for check in checks} == {Outcome.PASS}


@pytest.mark.parametrize(
    "fault_id",
    [
        fault if fault in ON_EVERY_COMMIT else pytest.param(fault, marks=pytest.mark.nightly)
        for fault in FAULTS
    ],
)
def test_the_smoke_finds_the_fault(fault_id: str, run_trial: RunTrial, tmp_path: Path) -> None:
    """At level 0."""
    result = run_trial(planted(fault_id, tmp_path), GrpoSmoke(), SMOKE)
    hold(result, expectation(get_fault(fault_id), "grpo-smoke"))


@pytest.mark.parametrize("fault_id", [None, "advantages-negated"])
def test_the_learning_trial_tells_learning_from_unlearning(
    fault_id: str | None, run_trial: RunTrial, tmp_path: Path
) -> None:
    """One seed, a few steps: the right sign passes, the wrong one fails."""
    target = ReferenceTarget() if fault_id is None else planted(fault_id, tmp_path)
    result = run_trial(target, LearningSignal(num_seeds=1), LEARNING)
    rise = next(verdict for verdict in result.verdicts if verdict.name.startswith("validation reward rises"))
    if fault_id is None:
        assert result.outcome is Outcome.PASS, result.verdicts
        return
    hold(result, expectation(get_fault(fault_id), "learning-signal"))
    assert isinstance(rise.value, float)
    assert rise.value < 0
