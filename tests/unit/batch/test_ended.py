"""How a job of a trial ended, in words, by the scheduler's state and by what the job left."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from seatrial.batch.spread import gather, how_it_ended
from seatrial.launch.jobs import Ended, Job
from seatrial.launch.slurm import end_of
from seatrial.targets.base import Need
from seatrial.trials.results import TrialResult


@pytest.mark.parametrize(
    ("state", "begins"),
    [
        ("PREEMPTED", "pre-empted: a job of higher priority took its place (sacct: PREEMPTED)"),
        ("NODE_FAIL", "node lost: "),
        ("OUT_OF_MEMORY", "out of memory: "),
        ("CANCELLED by 0", "lost or killed: the job left no exit status (sacct: CANCELLED by 0)"),
        ("TIMEOUT", "time limit: "),
    ],
)
def test_a_state_of_the_scheduler_in_words(state: str, begins: str) -> None:
    end = end_of(state, f"sacct: {state}")
    ended = Ended(
        exit_status=None, seconds=1.0, timed_out=end.timed_out, last_report=end.last_report, cause=end.cause
    )
    assert how_it_ended(ended, Need()).startswith(begins)


@pytest.mark.parametrize(("restarts", "said"), [(0, []), (1, ["once"]), (3, ["3 times"])])
def test_a_requeued_job_says_that_it_began_again(tmp_path: Path, restarts: int, said: list[str]) -> None:
    """And the status of its first start does not count."""
    job = Job(
        name="job", argv=("true",), tree=tmp_path, run_dir=tmp_path, environment={}, own_variables=(), timeout_seconds=9
    )  # fmt: skip
    (tmp_path / "exit_status").write_text("143")
    count = {"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}
    places = {"SEATRIAL_RUN_DIR": str(tmp_path), "SEATRIAL_RUN_TREE": str(tmp_path)}
    subprocess.run(job.wrapped(), env={"PATH": "/usr/bin:/bin", **places, **count}, check=True)
    assert job.exit_status() == 0
    result = TrialResult(name="sft-smoke", level=0, summary="", proves="", does_not_prove="")
    gather(tmp_path, result, tmp_path, "lost")
    assert [one.partition("job ")[2].partition(" (")[0] for one in result.limitations] == said
