"""Asynchronous GRPO learns the addition task as the synchronous loop does, over five seeds of each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_both_loops_learn_and_their_curves_lie_within_the_noise(repository: Path, tmp_path: Path) -> None:
    """The asynchronous runs are held to a baseline learned from the synchronous ones; both rise."""
    script = repository / "benchmarks" / "async_learning.py"
    jobs = str(max(1, (os.cpu_count() or 1) // 2))
    ran = subprocess.run(
        [sys.executable, str(script), "--work", str(tmp_path / "runs"), "--jobs", jobs],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("\nPass") == 8
