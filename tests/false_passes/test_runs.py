"""FP30-FP36 and FP40: runs that other projects' harnesses let pass, and the verdict that is right."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.false_passes.corpus import Row, by_id
from tests.unit.trials.toy_target import TOY, ToyTarget, run_toy

from seatrial.trials.base import Trial, TrialContext
from seatrial.trials.grpo_smoke import GrpoSmoke
from seatrial.trials.learning_signal import LearningSignal
from seatrial.trials.results import Results
from seatrial.verdict import Outcome, Verdict, exit_code


@pytest.fixture(autouse=True)
def _toystack_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOY))


def verdicts(results: Results) -> dict[str, Verdict]:
    """Return the verdicts of the requested trials by name."""
    return {verdict.name: verdict for trial in results.requested_trials() for verdict in trial.verdicts}


def judged(tmp_path: Path, target: ToyTarget, trials: Sequence[Trial] = (GrpoSmoke(),)) -> Results:
    """Run and return what was concluded."""
    return run_toy(tmp_path, target, list(trials))[1]


@pytest.mark.parametrize("row", by_id("FP30"), ids=str)
def test_a_run_that_stops_early_with_exit_0_fails(row: Row, tmp_path: Path) -> None:
    """Gates are not skipped because the last step is missing."""
    results = judged(tmp_path, ToyTarget("stop-early"))
    assert results.outcome is Outcome.FAIL, row.right
    assert verdicts(results)["training ends with status 0"].outcome is Outcome.PASS
    assert verdicts(results)["steps reached"].outcome is Outcome.FAIL
    assert "reached step 1 of 2" in verdicts(results)["steps reached"].reason


@pytest.mark.parametrize("row", by_id("FP31"), ids=str)
def test_a_rerun_reads_its_own_evidence_alone(row: Row, tmp_path: Path) -> None:
    """A good run before a bad one, in the same place, changes nothing, and nor does a bad one before a good one."""
    outcomes = [judged(tmp_path, ToyTarget(mode)).outcome for mode in ("right", "nan-at-2", "right")]
    assert outcomes == [Outcome.PASS, Outcome.FAIL, Outcome.PASS], row.right


class Silent:
    """A trial that collects nothing."""

    name = "silent"
    level = 0
    summary = proves = does_not_prove = "nothing"

    def run(self, context: TrialContext) -> None:
        """Do nothing."""


@pytest.mark.parametrize("row", by_id("FP32"), ids=str)
def test_nothing_collected_is_exit_5(row: Row, tmp_path: Path) -> None:
    """Not 0."""
    results = judged(tmp_path, ToyTarget(), [Silent()])
    assert results.outcome is Outcome.SKIPPED
    assert exit_code(results.outcome) == 5, row.right


@pytest.mark.parametrize("row", by_id("FP32"), ids=str)
def test_a_session_that_selects_nothing_is_exit_5_and_says_so(row: Row, tmp_path: Path) -> None:
    """The result of an earlier session does not stand in for this one."""
    (tmp_path / "test_one.py").write_text("def test_one(tracker): tracker.track('x', 1)\n")
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    first, second = (
        subprocess.run([*words, *more], capture_output=True, cwd=tmp_path, check=False, timeout=120)
        for more in ([], ["-k", "nowhere"])
    )
    assert (first.returncode, second.returncode) == (0, 5), row.right
    result = json.loads((tmp_path / "unit_results.json").read_text())
    assert (result["exit_status"], result["metrics"]) == (5, {})
    assert "no test ran" in result["note"]


@pytest.mark.parametrize("row", by_id("FP33"), ids=str)
def test_a_job_that_never_started_is_blocked(row: Row, tmp_path: Path) -> None:
    """Nobody ran, so nobody passed, and nobody failed."""
    results = judged(tmp_path, ToyTarget(program="/nowhere/bin/srun"))
    assert results.outcome is Outcome.BLOCKED, row.right
    assert exit_code(results.outcome) == 3
    assert "cannot start '/nowhere/bin/srun'" in verdicts(results)["the trial can run"].reason


@pytest.mark.parametrize("row", by_id("FP34"), ids=str)
def test_a_missing_gpu_is_blocked_when_requested(row: Row, tmp_path: Path) -> None:
    """Never Pass, and never an exit 0 for a skip."""
    results = judged(tmp_path, ToyTarget("no-gpu"))
    assert results.outcome is Outcome.BLOCKED, row.right
    assert "finds no CUDA device" in verdicts(results)["training ends with status 0"].reason


@pytest.mark.parametrize("row", by_id("FP35"), ids=str)
def test_another_checkout_only_in_the_worker_is_blocked(row: Row, tmp_path: Path) -> None:
    """The driver imports the right one, the launched process another."""
    shutil.copytree(TOY, tmp_path / "other")
    results = judged(tmp_path / "runs", ToyTarget(place=tmp_path / "other"))
    assert results.outcome is Outcome.BLOCKED, row.right
    assert verdicts(results)["origin of toystack on the driver"].outcome is Outcome.PASS
    assert verdicts(results)["origin of toystack in the run"].outcome is Outcome.BLOCKED


@pytest.mark.parametrize("row", by_id("FP35"), ids=str)
def test_another_checkout_on_the_driver_is_blocked(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the other way about."""
    shutil.copytree(TOY, tmp_path / "other")
    monkeypatch.syspath_prepend(str(tmp_path / "other"))
    results = judged(tmp_path / "runs", ToyTarget())
    assert results.outcome is Outcome.BLOCKED, row.right
    assert verdicts(results)["origin of toystack on the driver"].outcome is Outcome.BLOCKED
    assert verdicts(results)["origin of toystack in the run"].outcome is Outcome.PASS


@pytest.mark.parametrize("row", by_id("FP36"), ids=str)
def test_a_best_step_before_a_collapse_fails(row: Row, tmp_path: Path) -> None:
    """The reward is 0.9 at step 1 and never again."""
    results = judged(tmp_path, ToyTarget("collapse"), [LearningSignal(num_seeds=1)])
    assert results.outcome is Outcome.FAIL, row.right
    trend = verdicts(results)["seed 0: training reward: last window above the first"]
    assert trend.outcome is Outcome.FAIL
    assert "best 0.900" in trend.reason


@pytest.mark.parametrize("row", by_id("FP40"), ids=str)
def test_zero_variance_fails_at_level_6_and_is_not_triggered_at_level_0(row: Row, tmp_path: Path) -> None:
    """Every advantage and every gradient is 0: nothing broke, and nothing was learnt."""
    smoke = judged(tmp_path, ToyTarget("zero-variance"))
    gradient = verdicts(smoke)['min(data["train/grad_norm"]) > 0']
    assert gradient.outcome is Outcome.SKIPPED, row.right
    assert "not triggered" in gradient.reason
    learning = judged(tmp_path, ToyTarget("zero-variance"), [LearningSignal(num_seeds=1)])
    assert learning.outcome is Outcome.FAIL, row.right
    assert verdicts(learning)["seed 0: no silent freeze: the gradient is alive"].outcome is Outcome.FAIL
