"""`seatrial run` as a person types it."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from seatrial.trials.results import TrialState
from seatrial.trials.rundir import read_results
from seatrial.verdict import Outcome

pytestmark = pytest.mark.e2e


def test_level_0_passes_and_leaves_its_evidence(tmp_path: Path) -> None:
    """From nothing: a model is made, trained for a few steps, and judged."""
    ran = subprocess.run(
        [sys.executable, "-m", "seatrial", "run", "--output", str(tmp_path / "runs"), "--seed", "3"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (path,) = (tmp_path / "runs").iterdir()
    assert f"report: {path / 'report.md'}" in ran.stdout
    assert {item.name for item in path.iterdir()} >= {
        "results.json",
        "identity.json",
        "report.md",
        "junit.xml",
    }
    trial = path / "trials" / "0-grpo-smoke"
    assert {item.name for item in trial.iterdir()} >= {
        "command.txt", "run.log", "metrics.json", "logs", "checkpoints",
    }  # fmt: skip
    metrics = json.loads((trial / "metrics.json").read_text())
    assert list(metrics["train/token_mult_prob_error"]) == ["1", "2", "3"]
    info = json.loads((trial / "logs" / "run_info.json").read_text())
    assert info["seed"] == 3
    identity = json.loads((path / "identity.json").read_text())
    assert {item["file"] for item in identity["runs"]["grpo-smoke"]} == {info["origins"]["refrl"]}


def test_a_disk_that_fills_up_in_the_training_process_is_blocked(tmp_path: Path, tiny_model: Path) -> None:
    """A file size limit stands in for the disk: there is room for our results and not for the trained model."""
    script = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, {resource.RLIM_INFINITY}))\n"
        "from seatrial.cli import main\n"
        f"words = ['run', '--output', {str(tmp_path)!r}, 'policy.model_name={tiny_model}']\n"
        "raise SystemExit(main(words))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 3, ran.stdout + ran.stderr
    (path,) = tmp_path.iterdir()
    (trial,) = read_results(path).requested_trials()
    ended = next(verdict for verdict in trial.verdicts if verdict.name == "training ends with status 0")
    assert ended.outcome is Outcome.BLOCKED
    assert "File too large" in ended.reason
    assert "free space" in ended.reason


@pytest.mark.nightly
def test_ctrl_c_in_mid_run_leaves_no_orphan(tmp_path: Path, tiny_model: Path) -> None:
    """Exit 130; the training process is gone; results.json is valid."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "seatrial", "run", "--output", str(tmp_path / "runs"),
            f"policy.model_name={tiny_model}", "grpo.max_num_steps=100000",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        pid = _training_process(process, tmp_path / "runs")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    (path,) = (tmp_path / "runs").iterdir()
    (trial,) = read_results(path).requested_trials()
    assert (trial.state, trial.outcome) == (TrialState.INTERRUPTED, Outcome.BLOCKED)


def _training_process(process: "subprocess.Popen[bytes]", runs: Path) -> int:
    """Wait until the first step is in the console log; return the id of the process that trains."""
    while process.poll() is None:
        logs = list(runs.glob("*/trials/*/run.log"))
        if logs and "step" in logs[0].read_text():
            (child,) = psutil.Process(process.pid).children()
            return child.pid
        try:
            process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"the run ended early with status {process.returncode}")
