"""Levels 4 and 5 on the reference stack: layouts, resumes across backends, and architectures."""

from pathlib import Path

import pytest

from seatrial.evidence.identity.redaction import Redactor
from seatrial.faults.launch import entry
from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.architectures import architecture_trials
from seatrial.trials.base import Trial
from seatrial.trials.checkpointing import CheckpointSave, GrpoLora
from seatrial.trials.grpo_smoke import GrpoSmoke
from seatrial.trials.parallel import layout_trials
from seatrial.trials.results import TrialResult
from seatrial.trials.resume_diamond import backend_diamonds
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request, new_results, run_trials
from seatrial.trials.sensors.served import SERVED
from seatrial.verdict import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("forked_processes")]
ON_EACH: list[Trial] = [GrpoSmoke(), CheckpointSave(), GrpoLora()]
"""Trials whose guards read the optimizer's state, in whatever form a backend has it."""
OF_LEVELS: list[Trial] = [*layout_trials(), *backend_diamonds(), *architecture_trials()]
TRIALS = {trial.name: trial for trial in (*ON_EACH, *OF_LEVELS)}


PLANTED = {
    "arch-moe": "padding-routed",
    "arch-quantised": "never-quantised",
    "arch-draft": "draft-sees-no-states",
    "arch-vlm": "image-of-zeros",
    "arch-audio": "image-of-zeros",
}
"""A fault in the path that only the architecture has."""


def tried(folder: Path, name: str, *overrides: str, fault: str | None = None) -> TrialResult:
    """Return what a trial of the reference stack concludes, with a fault planted in it where one is named."""
    target = ReferenceTarget() if fault is None else ReferenceTarget(entry(fault))
    request = Request(trials=[TRIALS[name]], words=name, seed=0, overrides=overrides, timeout_seconds=300.0)
    with RunDirectory.create(folder, target.name) as directory:
        results = new_results(directory, target, request, Redactor())
        run_trials(directory, results, target, request, lambda text: None)
    (result,) = results.requested_trials()
    return result


def failed(result: TrialResult) -> list[str]:
    """Return the names of the verdicts that failed."""
    return [verdict.name for verdict in result.verdicts if verdict.outcome is Outcome.FAIL]


@pytest.mark.nightly
def test_experts_train(tmp_path: Path) -> None:
    """In the trial of their architecture."""
    result = tried(tmp_path, "arch-moe")
    assert not failed(result)
    assert result.outcome is Outcome.PASS


@pytest.mark.nightly
def test_a_model_of_another_architecture_proves_nothing(tmp_path: Path) -> None:
    """The model of one trial, given to another."""
    tried(tmp_path, "arch-moe")
    model = next(tmp_path.rglob("5-arch-moe/model"))
    other = tried(tmp_path, "arch-dense", f"policy.model_name={model}")
    (sensor,) = (trial.sensors[0].name for trial in architecture_trials() if trial.name == "arch-dense")
    assert {SERVED, sensor} <= set(failed(other))


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "fault"), PLANTED.items())
def test_a_fault_in_the_path_of_an_architecture_fails_its_trial(
    tmp_path: Path, name: str, fault: str
) -> None:
    """By the sensors of that trial, not only by those of level 0."""
    own = {sensor.name for trial in architecture_trials() if trial.name == name for sensor in trial.sensors}
    assert own & set(failed(tried(tmp_path, name, fault=fault)))


@pytest.mark.nightly
@pytest.mark.parametrize("name", [trial.name for trial in OF_LEVELS if trial.name != "arch-moe"])
def test_every_trial_of_these_levels_passes(tmp_path: Path, name: str) -> None:
    """With every claim proved."""
    if "-ray-" in name:
        pytest.importorskip("ray", reason="Ray is not installed: tests/peers/test_ray_ranks.py")
    result = tried(tmp_path, name)
    assert not failed(result)
    assert result.outcome is Outcome.PASS
    assert result.key_verdicts


@pytest.mark.nightly
@pytest.mark.parametrize("name", [trial.name for trial in architecture_trials()])
def test_every_architecture_passes_on_weights_that_are_spread(tmp_path: Path, name: str) -> None:
    """And its evidence says so, from the objects that ran."""
    result = tried(tmp_path, name, "policy.dtensor_cfg.enabled=true", "cluster.num_processes=2")
    assert result.outcome is Outcome.PASS
    (said,) = (verdict for verdict in result.verdicts if verdict.name == SERVED)
    assert str(said.value).startswith("dtensor {'data': 2}")


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["dtensor", "megatron"])
@pytest.mark.parametrize("name", [trial.name for trial in ON_EACH])
def test_lower_levels_pass_on_each_backend(tmp_path: Path, name: str, backend: str) -> None:
    """Their guards hold the same things there."""
    result = tried(tmp_path, name, f"policy.{backend}_cfg.enabled=true")
    assert not failed(result)
    assert result.outcome is Outcome.PASS
