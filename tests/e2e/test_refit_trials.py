"""Level 2 on the reference stack."""

import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.trials.rundir import read_results
from seatrial.verdict import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("forked_processes")]


@pytest.mark.parametrize(
    ("trial", "words", "failed"),
    [
        ("refit-delta", [], None),
        pytest.param("refit-noncolocated", [], None, marks=pytest.mark.nightly),
        pytest.param(
            "refit-delta",
            ["policy.generation.delta_compression.enabled=false"],
            "changes alone travelled between full syncs",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "refit-noncolocated",
            ["policy.generation.placement=inline"],
            "every tensor held against its fingerprint, at every step",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_the_trial(tmp_path: Path, trial: str, words: list[str], failed: str | None) -> None:
    """It passes; where the run does not do what the trial is for, the check that says so fails."""
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "seatrial",
            "run",
            "--trial",
            trial,
            "--output",
            str(tmp_path / "runs"),
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    (path,) = (tmp_path / "runs").iterdir()
    (result,) = (one for one in read_results(path).trials if one.name == trial)
    wrong = [verdict.name for verdict in result.verdicts if verdict.outcome is Outcome.FAIL]
    if failed is None:
        assert (ran.returncode, wrong) == (0, []), ran.stdout + ran.stderr
    else:
        assert ran.returncode == 1
        assert failed in wrong
