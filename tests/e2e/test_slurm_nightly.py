"""Jobs of a real Slurm: cancelled, over the limit, pre-empted and requeued are distinguished; a resume continues."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.changes import wait_until
from tests.e2e import slurm_site
from tests.e2e.test_run_jobs import command, stack

from seatrial.batch.spread import ENDED
from seatrial.launch.jobs import read_started
from seatrial.trials.results import TrialState
from seatrial.trials.rundir import read_results
from seatrial.verdict import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(1500)]

__all__ = ["stack"]

CANCELLED, TOO_LONG = "grpo-smoke", "grpo-lora"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a running Slurm; the test is skipped where its packages are missing."""
    if reason := slurm_site.missing():
        pytest.skip(f"no Slurm here: {reason}")
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm_site.site(folder) as environment:
        yield {**environment, "ACCOUNT": "any", "PARTITION": "test", "OMP_NUM_THREADS": "1"}


def trainings(run: Path, trial: str) -> list[psutil.Process]:
    """Return the living trainings of a trial's job."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "refrl" in (words := process.info["cmdline"] or [])
        and "grpo" in words
        and any(str(run) in word and f"-{trial}/" in word for word in words)
    ]


def test_a_cancelled_job_and_one_over_its_limit_are_told_apart_and_resumed(
    tmp_path: Path, slurm: dict[str, str]
) -> None:
    runs = tmp_path / "runs"
    command = [sys.executable, "-m", "seatrial", "run", "--launcher", "slurm"]
    first = [*command, "--launch-option=--time=1", "--output", str(runs)]
    process = subprocess.Popen(
        [*first, "--trial", CANCELLED, "--trial", TOO_LONG],
        env=slurm,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: list(runs.glob("*/jobs/*/started.json")), tmp_path, process, 300)
    (run,) = runs.iterdir()
    for trial in (CANCELLED, TOO_LONG):
        wait_until(lambda trial=trial: trainings(run, trial), run, process, 300)  # type: ignore[misc]
        for training in trainings(run, trial):
            # It makes no progress, however fast this machine is.
            training.send_signal(signal.SIGSTOP)
    job = read_started(run / "jobs" / f"0-{CANCELLED}")["job"]
    subprocess.run(["scancel", str(job)], env=slurm, check=True)
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 3, out + errors

    trials = {trial.name: trial for trial in read_results(run).requested_trials()}
    reasons = {}
    for name, trial in trials.items():
        assert (trial.state, trial.outcome) == (TrialState.INTERRUPTED, Outcome.BLOCKED)
        reasons[name] = next(verdict.reason for verdict in trial.verdicts if verdict.name == ENDED)
    assert reasons[CANCELLED].startswith("lost or killed")
    assert "scontrol: CANCELLED" in reasons[CANCELLED]
    assert reasons[TOO_LONG].startswith("time limit")
    assert "scontrol: TIMEOUT" in reasons[TOO_LONG]

    resumed = subprocess.run(
        [*command, "--resume", str(run)], env=slurm, capture_output=True, text=True, timeout=900, check=False
    )
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    results = read_results(run)
    assert {trial.name: trial.outcome for trial in results.requested_trials()} == {
        CANCELLED: Outcome.PASS,
        TOO_LONG: Outcome.PASS,
    }
    assert (run / "trials").exists() is False
    assert [trial.directory.split("/")[0] for trial in results.requested_trials() if trial.directory] == [
        "jobs"
    ] * 2


@pytest.mark.parametrize("requeues", [True, False])
def test_a_job_that_another_takes_the_place_of_is_requeued_or_pre_empted(
    stack: Path,
    slurm: dict[str, str],
    requeues: bool,
) -> None:
    """Requeued it concludes, and says that it began again; else its trial is Blocked, and a resume runs it."""
    hang, hangs = stack.parent / "hang-smoke", stack.parent / "hangs-smoke"
    hang.touch()
    words = [] if requeues else ["--launch-option=--no-requeue"]
    slurm = {**slurm, "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        command(stack, "--launcher", "slurm", "--trial", "sft-smoke", *words),
        cwd=stack.parent,
        env=slurm,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(hangs.exists, stack.parent, process, 300)
    hang.unlink()
    urgent = [
        "sbatch",
        "--partition=urgent",
        "--exclusive",
        "--wait",
        f"--chdir={stack.parent}",
        "--wrap=true",
    ]
    subprocess.run(urgent, env=slurm, check=True, timeout=300)
    out, errors = process.communicate(timeout=900)
    (run,) = (stack.parent / "runs").iterdir()
    (trial,) = read_results(run).requested_trials()
    if requeues:
        assert (process.returncode, trial.outcome) == (0, Outcome.PASS), out + errors
        assert [one for one in trial.limitations if one.startswith("Slurm requeued the job once")]
        return
    assert process.returncode == 3, out + errors
    reason = next(verdict.reason for verdict in trial.verdicts if verdict.name == ENDED)
    assert reason.startswith("pre-empted: a job of higher priority took its place (scontrol: PREEMPTED")
    resumed = subprocess.run(
        command(stack, "--launcher", "slurm", "--resume", str(run)),
        cwd=stack.parent, env=slurm, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
