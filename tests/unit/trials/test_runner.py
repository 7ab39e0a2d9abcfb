"""Whatever ends a run, results.json says what is known, and the run can go on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.unit.trials.toy_target import TOY, ToyTarget, run_toy

from seatrial.trials.grpo_smoke import GrpoSmoke
from seatrial.trials.learning_signal import LearningSignal
from seatrial.trials.plan import all_trials
from seatrial.trials.results import TrialState
from seatrial.trials.rundir import read_results
from seatrial.verdict import Outcome

ROOT = Path(__file__).resolve().parents[3]

CLI = """
import os, signal, sys
sys.path[:0] = [{root!r}, {toy!r}]
from pathlib import Path
from seatrial.cli import main, run
from tests.unit.trials.toy_target import ToyTarget
run.get_target = lambda name: ToyTarget(Path({mode!r}).read_text())
from seatrial.trials import base, launching
from seatrial import launch
right = launching.run_command
def watched(argv, **options):
    def progress(seconds, line):
        if {when!r} and line == {when!r}:
            os.kill(os.getpid(), {number})
    return right(argv, **{{**options, "progress": progress}})
launching.run_command = watched
raise SystemExit(main({words!r}))
"""


def seatrial(
    tmp_path: Path, words: list[str], *, mode: str = "right", when: str = "", number: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run the command line on the toy; signal it once the toy has said something."""
    (tmp_path / "mode").write_text(mode)
    script = CLI.format(
        root=str(ROOT), toy=str(TOY), mode=str(tmp_path / "mode"), words=words, when=when, number=int(number)
    )
    return subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )


def only_run(tmp_path: Path) -> Path:
    """Return the one run directory."""
    (path,) = (tmp_path / "runs").iterdir()
    return path


def processes_of(path: Path) -> list[int]:
    """Return the processes that were started for a run, whose command lines name its folder from where they run."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words, folder = process.info["cmdline"] or [], Path(process.info["cwd"] or "/")
        if any((folder / word).is_relative_to(path) for word in words if path.name in word):
            found.append(process.pid)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_an_interrupted_run_says_so_leaves_no_orphan_and_goes_on(tmp_path: Path, number: int) -> None:
    """Exit 130; then --resume runs what did not conclude, in a folder of its own."""
    ran = seatrial(tmp_path, ["run", "--target", "toy"], mode="hang", when="step 1/2", number=number)
    assert ran.returncode == 130, ran.stderr
    assert "interrupted" in ran.stderr
    path = only_run(tmp_path)
    (trial,) = read_results(path).requested_trials()
    assert (trial.state, trial.outcome) == (TrialState.INTERRUPTED, Outcome.BLOCKED)
    assert "interrupted before it concluded" in (path / "report.md").read_text()
    assert processes_of(path) == []

    again = seatrial(tmp_path, ["run", "--resume", str(path)])
    assert again.returncode == 0, again.stderr
    (trial,) = read_results(path).requested_trials()
    assert (trial.state, trial.outcome) == (TrialState.CONCLUDED, Outcome.PASS)
    assert sorted(item.name for item in (path / "trials").iterdir()) == [
        "0-grpo-smoke",
        "0-grpo-smoke.abandoned-1",
    ]


def test_a_killed_harness_leaves_valid_results(tmp_path: Path) -> None:
    """SIGKILL asks nobody: what was concluded stands, the rest is Blocked."""
    ran = seatrial(tmp_path, ["run", "--target", "toy"], mode="hang", when="step 1/2", number=signal.SIGKILL)
    assert ran.returncode == -signal.SIGKILL
    path = only_run(tmp_path)
    results = read_results(path)
    assert results.outcome is Outcome.BLOCKED
    assert results.finished_at is None
    assert [trial.state for trial in results.requested_trials()] == [TrialState.RUNNING]
    (orphan,) = processes_of(path)
    # Nobody was left to end the command: this test does.
    os.kill(orphan, signal.SIGKILL)


def test_what_concluded_is_not_run_again(tmp_path: Path) -> None:
    """A resumed run of two trials keeps the verdicts of the first."""
    words = ["run", "--target", "toy", "--level", "0,6"]
    ran = seatrial(tmp_path, words, mode="hang-in-long-runs", when="step 1/10", number=signal.SIGINT)
    assert ran.returncode == 130, ran.stderr
    path = only_run(tmp_path)
    first = read_results(path).requested_trials()
    assert [trial.state for trial in first] == [TrialState.CONCLUDED, TrialState.INTERRUPTED]
    assert seatrial(tmp_path, ["run", "--resume", str(path)]).returncode == 0
    second = read_results(path).requested_trials()
    assert [trial.outcome for trial in second] == [Outcome.PASS, Outcome.PASS]
    assert second[0] == first[0]
    assert not (path / "trials" / "0-grpo-smoke.abandoned-1").exists()


def test_a_concluded_run_is_resumed_to_the_same_verdict(tmp_path: Path) -> None:
    """FP31: a rerun after a failed gate fails again, from this run's evidence."""
    assert seatrial(tmp_path, ["run", "--target", "toy"], mode="nan-at-2").returncode == 1
    path = only_run(tmp_path)
    before = read_results(path).requested_trials()
    assert seatrial(tmp_path, ["run", "--resume", str(path)], mode="right").returncode == 1
    assert read_results(path).requested_trials() == before


def test_every_known_trial_is_listed_and_only_the_requested_count(tmp_path: Path) -> None:
    """What nobody asked for is NotRequested, by name."""
    path, results = run_toy(tmp_path, ToyTarget(missing="no stack"), [GrpoSmoke()])
    others = {trial.name: Outcome.NOT_REQUESTED for trial in all_trials() if trial.name != "grpo-smoke"}
    assert len(others) >= 3
    assert {trial.name: trial.outcome for trial in results.trials} == {
        "grpo-smoke": Outcome.BLOCKED,
        **others,
    }
    written = json.loads((path / "results.json").read_text())
    assert written["schema_version"] == 1
    assert written["finished_at"] is not None


def test_results_are_written_before_each_command_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every state that the file was ever in is valid; while a command runs, it holds the verdicts before."""
    monkeypatch.syspath_prepend(str(TOY))
    seen: list[int] = []
    right = Path.replace

    def watch(self: Path, target: Path) -> Path:
        moved = right(self, target)
        if Path(target).name == "results.json":
            seen.append(sum(len(trial.verdicts) for trial in read_results(Path(target).parent).trials))
        return moved

    monkeypatch.setattr(Path, "replace", watch)
    _, results = run_toy(tmp_path, ToyTarget())
    (trial,) = results.requested_trials()
    assert seen == sorted(seen)
    assert 0 < seen[-3] < 15 < seen[-1]
    assert len(seen) == len(trial.commands) + 4, "as the run and the trial begin and end"


def test_trials_of_one_run_do_not_share_evidence(tmp_path: Path) -> None:
    """Each has a folder of its own."""
    _, results = run_toy(tmp_path, ToyTarget(missing="no stack"), [GrpoSmoke(), LearningSignal()])
    folders = [trial.directory for trial in results.requested_trials()]
    assert folders == ["trials/0-grpo-smoke", "trials/6-learning-signal"]
