"""`seatrial run --jobs`: trials side by side, their devices, budget and shards, and what is left when a job is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from tests.unit.targets.toy_command import save

from seatrial.batch.spread import ENDED
from seatrial.cli import main
from seatrial.trials.results import Results, TrialState
from seatrial.trials.rundir import read_results
from seatrial.verdict import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

TOY = Path(__file__).resolve().parents[1] / "unit" / "targets" / "toy_command.py"
PROGRAM = f"""
import os, runpy, sys, time
from pathlib import Path
given = dict(word.split("=", 1) for word in sys.argv[1:])
notes = Path(given["notes"])
with (notes / "devices").open("a") as file:
    file.write(given["as"] + " " + os.environ.get("CUDA_VISIBLE_DEVICES", "unset") + chr(10))
if (notes / ("hang-" + given["as"])).exists():
    (notes / ("hangs-" + given["as"])).touch()
    time.sleep(300)
runpy.run_path({str(TOY)!r}, run_name="__main__")
"""
STACK: dict[str, Any] = {
    "run": [sys.executable, "{here}/program.py"],
    "options": {"kind": "{kind}", "model": "{model}", "out": "{out}", "seed": "{seed}", "steps": "{steps}"},
    "resume": {"from": "{checkpoint}"},
    "logs": "{out}/run-*",
    "checkpoints": "{out}/checkpoint-{step}",
    "export": "{out}/final",
    "recipes": {
        "sft-smoke": {"steps": 3, "options": {"as": "smoke"}},
        "sft-resume-diamond": {"steps": 3, "minutes": 6, "options": {"as": "diamond"}},
    },
}
NAMES = ("sft-smoke", "sft-resume-diamond")
WORDS = ("--trial", NAMES[0], "--trial", NAMES[1])


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    """The YAML file of the toy; its command notes its devices, and hangs while `hang-NAME` exists."""
    (tmp_path / "program.py").write_text(PROGRAM)
    options = {**STACK["options"], "notes": str(tmp_path)}
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump({**STACK, "options": options}, sort_keys=False))
    save(tmp_path / "model", {name: np.ones((3, 5), dtype=np.float32) for name in ("embed", "head")})
    return path


def command(stack: Path, *words: str) -> list[str]:
    base = [sys.executable, "-m", "seatrial", "run", *words]
    if "--resume" in words:
        return base
    return [*base, "--target", str(stack), f"model={stack.parent / 'model'}"]


def run(stack: Path, *words: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], Path, Results]:
    """Run to the end, and return the newest run directory with its results."""
    ran = subprocess.run(
        command(stack, *words),
        cwd=stack.parent,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = sorted((stack.parent / "runs").iterdir())
    assert found, ran.stdout + ran.stderr
    return ran, found[-1], read_results(found[-1])


@pytest.fixture
def started(stack: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a run and returns once trainings of these kinds hang."""
    processes = []

    def start(*words: str, hanging: tuple[str, ...]) -> subprocess.Popen[str]:
        for kind in hanging:
            (stack.parent / f"hang-{kind}").touch()
        process = subprocess.Popen(
            command(stack, *words),
            cwd=stack.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        while not all((stack.parent / f"hangs-{kind}").exists() for kind in hanging):
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.1)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=100)


def trainings(stack: Path) -> list[psutil.Process]:
    """Return the living training commands of the toy."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(stack.parent / "program.py") in (process.info["cmdline"] or [])
    ]


def jobs_of(stack: Path, trial: str) -> list[psutil.Process]:
    """Return the living `seatrial run` processes of a trial's job."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if (words := process.info["cmdline"] or [])
        and words[1:4] == ["-m", "seatrial", "run"]
        and trial in words
        and any(word.startswith(str(stack.parent)) and "/jobs/" in word for word in words)
    ]


def test_two_trials_at_once_pass_on_devices_of_their_own(stack: Path) -> None:
    ran, path, results = run(stack, *WORDS, "--jobs", "2", CUDA_VISIBLE_DEVICES="4,7")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    trials = results.requested_trials()
    assert [(trial.name, trial.outcome) for trial in trials] == [(name, Outcome.PASS) for name in NAMES]
    for trial in trials:
        assert trial.directory is not None
        assert (path / trial.directory / "command.txt").is_file()
    assert results.finished_at is not None
    devices = dict(line.split() for line in (stack.parent / "devices").read_text().splitlines())
    assert set(devices.values()) == {"4", "7"}
    assert "sft-smoke" in (path / "report.html").read_text()


@pytest.mark.nightly
def test_an_interruption_ends_every_job_and_a_resume_takes_up_the_rest(
    stack: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    process = started(*WORDS, "--jobs", "2", hanging=("smoke", "diamond"))
    assert len(trainings(stack)) == 2
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 130, out + errors
    assert trainings(stack) == []
    (path,) = (stack.parent / "runs").iterdir()
    assert [trial.state for trial in read_results(path).requested_trials()] == [TrialState.INTERRUPTED] * 2
    for kind in ("smoke", "diamond"):
        (stack.parent / f"hang-{kind}").unlink()
    ran, _, results = run(stack, "--resume", str(path), "--jobs", "2")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert results.outcome is Outcome.PASS


def test_a_resume_ends_what_a_killed_run_left(
    stack: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    process = started("--trial", NAMES[0], "--jobs", "1", hanging=("smoke",))
    process.kill()
    process.communicate(timeout=100)
    assert len(trainings(stack)) == 1
    (path,) = (stack.parent / "runs").iterdir()
    (stack.parent / "hang-smoke").unlink()
    ran, _, results = run(stack, "--resume", str(path), "--jobs", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert results.outcome is Outcome.PASS
    assert trainings(stack) == []


def test_a_lost_job_costs_its_trial_and_nothing_else(
    stack: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    process = started(*WORDS, "--jobs", "2", hanging=("smoke",))
    (job,) = jobs_of(stack, "sft-smoke")
    left = trainings(stack)
    job.kill()
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 3, out + errors
    for training in left:
        # The lost job could not stop it: this test does.
        if training.is_running():
            training.kill()
    (path,) = (stack.parent / "runs").iterdir()
    lost, other = read_results(path).requested_trials()
    assert (lost.state, lost.outcome) == (TrialState.INTERRUPTED, Outcome.BLOCKED)
    assert other.outcome is Outcome.PASS
    verdict = next(verdict for verdict in lost.verdicts if verdict.name == ENDED)
    assert "exit status 137" in verdict.reason
    (stack.parent / "hang-smoke").unlink()
    ran, _, results = run(stack, "--resume", str(path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert results.requested_trials()[1] == other


def test_a_budget_leaves_out_what_does_not_fit_and_a_resume_with_another_runs_it(stack: Path) -> None:
    """One GPU for 30 minutes and one for 6: only the second fits in a quarter of an hour."""
    ran, path, results = run(stack, *WORDS, "--budget-gpu-hours", "0.25")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [trial.name for trial in results.requested_trials()] == ["sft-resume-diamond"]
    assert "Not requested sft-smoke: needs 0.5 GPU hours (1 GPUs for 30 minutes)" in ran.stdout
    assert "sft-smoke: not requested: needs 0.5" in (path / "report.md").read_text()
    ran, _, results = run(stack, "--resume", str(path), "--budget-gpu-hours", "0.5")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {trial.name: trial.outcome for trial in results.requested_trials()} == dict.fromkeys(
        NAMES, Outcome.PASS
    )
    assert results.left_out == {}


@pytest.mark.nightly
def test_a_budget_is_kept_by_stopping_what_takes_longer(stack: Path) -> None:
    """The trial declares three seconds and hangs."""
    (stack.parent / "hang-diamond").touch()
    content = yaml.safe_load(stack.read_text())
    content["recipes"]["sft-resume-diamond"]["minutes"] = 0.05
    stack.write_text(yaml.safe_dump(content, sort_keys=False))
    ran, _, results = run(stack, "--trial", "sft-resume-diamond", "--budget-gpu-hours", "1")
    assert ran.returncode == 3, ran.stdout + ran.stderr
    (trial,) = results.requested_trials()
    assert trial.state is TrialState.INTERRUPTED
    assert "time limit: the job was stopped after 0.05 minutes" in trial.verdicts[-1].reason
    assert trainings(stack) == []


def test_shards_are_merged_into_one_run(stack: Path, tmp_path: Path) -> None:
    shards = []
    for number in (1, 2):
        ran, path, results = run(stack, *WORDS, "--shard", f"{number}/2")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert [trial.name for trial in results.requested_trials()] == [NAMES[number - 1]]
        shards.append(str(path))
    words = [sys.executable, "-m", "seatrial", "report", *shards, "--merge", str(tmp_path / "whole")]
    merged = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert merged.returncode == 0, merged.stdout + merged.stderr
    whole = read_results(tmp_path / "whole")
    assert [trial.name for trial in whole.requested_trials()] == [*NAMES]
    for trial in whole.requested_trials():
        assert (tmp_path / "whole" / str(trial.directory) / "command.txt").is_file()
    again = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert again.returncode == 2
    assert "already exists" in again.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--jobs", "0"], "--jobs 0: give at least 1"),
        (["--budget-gpu-hours", "0"], "give a positive number of hours"),
        (["--budget-gpu-hours", "0.01"], "no trial fits: sft-smoke needs 0.5 GPU hours"),
        (["--shard", "3/2"], "--shard 3/2: write i/n"),
        (["--shard", "2/2"], "--shard 2/2 has no trial"),
        (["--launch-option", "image=x"], "--launch-option goes with --launcher"),
        (["--launcher", "slurm"], "needs the environment variables ACCOUNT, PARTITION"),
    ],
)
def test_wrong_use_is_one_line_before_anything_runs(
    words: list[str],
    message: str,
    stack: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(stack.parent)
    for name in ("ACCOUNT", "PARTITION"):
        monkeypatch.delenv(name, raising=False)
    assert main(["run", "--target", str(stack), "--trial", "sft-smoke", *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert not (stack.parent / "runs").exists()
