"""The shipped equivalence classes hold on the reference stack, and see a configuration that is not equivalent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.packaged import FOLDERS

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("forked_processes")]

OTHER_LOSS = "{name: other-loss, overrides: [loss_fn.reference_policy_kl_penalty=0.5]}"


def equivalence(repository: Path, file: Path, work: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "seatrial", "equivalence", str(file), "--work", str(work)],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


# Members of one process are held to these classes in-process on every commit (test_equivalence_plants.py).
NIGHTLY = {"grpo-batch-forms": 36, "grpo-checkpointed": 10, "grpo-colocated": 30}


@pytest.mark.parametrize(
    ("name", "num_checks"),
    [
        ("grpo-processes", 12),
        *(pytest.param(name, number, marks=pytest.mark.nightly) for name, number in NIGHTLY.items()),
    ],
)
def test_the_class_holds(repository: Path, tmp_path: Path, name: str, num_checks: int) -> None:
    """Every member agrees, by every metric, at its worst step and in its drift."""
    ran = equivalence(repository, Path(name), tmp_path / "work")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"Pass: {num_checks} checks: {num_checks} Pass" in ran.stdout


@pytest.mark.nightly
def test_micro_batches_do_not_change_the_trajectory_and_another_loss_does(
    repository: Path, tmp_path: Path
) -> None:
    """One member more, which is not equivalent, is told from those that are."""
    file = tmp_path / "class.yaml"
    shipped = (FOLDERS["equivalence class"] / "grpo-microbatches.yaml").read_text()
    file.write_text(shipped.replace("members:\n", f"members:\n  - {OTHER_LOSS}\n"))
    ran = equivalence(repository, file, tmp_path / "work")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    lines = [line for line in ran.stdout.splitlines() if "grpo-microbatches: " in line]
    assert len(lines) == 18
    assert all(line.startswith("Pass") for line in lines if "other-loss" not in line), ran.stdout
    assert any(line.startswith("Fail") for line in lines if "other-loss" in line), ran.stdout
