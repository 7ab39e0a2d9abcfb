"""Four trials over a Ray cluster of two nodes, one of which is lost: it costs its trials and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.changes import wait_until

from seatrial.batch.spread import ENDED
from seatrial.launch.jobs import read_started
from seatrial.trials.results import TrialState
from seatrial.trials.rundir import read_results
from seatrial.verdict import Outcome

pytestmark = [
    pytest.mark.usefixtures("one_cluster"),
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(3600),
]

TRIALS = ("grpo-smoke", "grpo-lora", "checkpoint-save", "sft-resume-diamond")
PATIENCE = 900.0
"""Seconds: on a busy machine a cluster alone takes minutes to start."""


@pytest.fixture
def environment(peer_python: Callable[[str], Path]) -> Iterator[dict[str, str]]:
    """Return variables with which `ray` is found, and keeps to a folder with a short path: its sockets are there."""
    python = peer_python("data_plane")
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield {
            **os.environ,
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "RAY_TMPDIR": folder,
            "TMPDIR": folder,
            "OMP_NUM_THREADS": "1",
            "RAY_health_check_period_ms": "1000",
        }


@pytest.fixture
def cluster(
    environment: dict[str, str], peer_python: Callable[[str], Path], repository: Path
) -> Iterator[Callable[[str], str]]:
    """Return a function that sends a line to the cluster and gives its answer; its address for an empty line."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [str(peer_python("data_plane")), str(repository / "tests/peers/ray_nodes.py"), str(port)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    address = next((line.strip() for line in process.stdout if line.startswith("http")), "")
    assert address, "the cluster did not start"

    def send(line: str) -> str:
        if not line:
            return address
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    yield send
    process.stdin.close()
    process.wait(timeout=300)


def trainings(run: Path, trial: str) -> list[psutil.Process]:
    """Return the living trainings of a trial's job."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "refrl" in (words := process.info["cmdline"] or [])
        and ("grpo" in words or "sft" in words)
        and any(str(run) in word and f"-{trial}/" in word for word in words)
    ]


def test_a_lost_node_costs_its_trials_and_a_resume_runs_them(
    tmp_path: Path, environment: dict[str, str], cluster: Callable[[str], str]
) -> None:
    command = [sys.executable, "-m", "seatrial", "run", "--launcher", "ray"]
    command += ["--launch-option", f"address={cluster('')}", "--launch-option=--entrypoint-num-cpus=1"]
    asked = [word for trial in TRIALS for word in ("--trial", trial)]
    process = subprocess.Popen(
        [*command, *asked, "--output", str(tmp_path / "runs")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def wait_for(found: Callable[[], object]) -> None:
        wait_until(found, tmp_path, process, PATIENCE)

    jobs: dict[str, str] = {}
    paused: list[psutil.Process] = []
    wait_for(lambda: len(list(tmp_path.glob("runs/*/jobs/*/started.json"))) == len(TRIALS))
    (run,) = (tmp_path / "runs").iterdir()
    for folder in (run / "jobs").iterdir():
        jobs[str(read_started(folder)["job"])] = folder.name.partition("-")[2]
    for trial in jobs.values():
        wait_for(lambda trial=trial: trainings(run, trial))  # type: ignore[misc]
        for training in trainings(run, trial):
            training.send_signal(signal.SIGSTOP)
            paused.append(training)
    lost = {jobs[job] for job in cluster(f"where {' '.join(jobs)}").split()}
    assert 1 <= len(lost) < len(TRIALS)
    assert cluster("lose") == "lost"
    kept = [training for trial in set(TRIALS) - lost for training in trainings(run, trial)]
    for training in kept:
        training.send_signal(signal.SIGCONT)
    out, errors = process.communicate(timeout=PATIENCE)
    for training in paused:
        # A node that is lost stops nothing; the test does.
        if training.is_running() and training not in kept:
            training.kill()
    assert process.returncode == 3, out + errors
    results = read_results(run)
    for found in results.requested_trials():
        if found.name in lost:
            assert found.state is TrialState.INTERRUPTED
            reason = next(verdict.reason for verdict in found.verdicts if verdict.name == ENDED)
            assert reason.startswith("lost or killed")
        else:
            assert found.outcome is Outcome.PASS, found.verdicts
    resumed = subprocess.run(
        [*command, "--resume", str(run)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert read_results(run).outcome is Outcome.PASS
