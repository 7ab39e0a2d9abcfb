"""The shipped equivalence classes hold on the reference stack, and see a configuration that is not equivalent."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e


def equivalence(repository: Path, file: Path, work: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "seatrial", "equivalence", str(file), "--work", str(work)],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_micro_batches_do_not_change_the_trajectory_and_another_loss_does(
    repository: Path, tmp_path: Path
) -> None:
    file = tmp_path / "class.yaml"
    shutil.copy(repository / "configs/equivalence/grpo-microbatches.yaml", file)
    other = "{name: other-loss, overrides: [policy.train_micro_batch_size=1, loss_fn.reference_policy_kl_penalty=0.5]}"
    file.write_text(file.read_text().replace("members:\n", f"members:\n  - {other}\n"))
    ran = equivalence(repository, file, tmp_path / "work")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    lines = [line for line in ran.stdout.splitlines() if "grpo-microbatches: " in line]
    assert len(lines) == 18
    assert all(line.startswith("Pass") for line in lines if "other-loss" not in line), ran.stdout
    assert any(line.startswith("Fail") for line in lines if "other-loss" in line), ran.stdout
