"""The workflow and the nightly script of examples/ci: their steps run on a small repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.test_compare import MODE, NAN, STACK, TOY, commit, git

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

CI = Path(__file__).resolve().parents[2] / "examples" / "ci"


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    """A repository of the toy with what the examples expect of a stack's repository."""
    repository = tmp_path / "stack"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    shutil.copy(TOY, repository / "toy_command.py")
    level_0 = {**STACK, "recipes": {"sft-smoke": {"steps": 2}}}
    (repository / "stack.yaml").write_text(yaml.safe_dump(level_0, sort_keys=False))
    (repository / "quarantine.yaml").write_text("[]\n")
    (repository / "requirements.txt").write_text("")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "sound")
    commit(repository, "toy_command.py", "leaves right evidence in a moment", "leaves right evidence at once")
    return repository


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """An environment whose `seatrial` is ours, and whose `pip` is a stand-in that installs nothing."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, text in {
        "pip": f'echo "$@" >> {tmp_path / "installed"}',
        "seatrial": f'exec {sys.executable} -m seatrial "$@"',
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def run_step(
    step: dict[str, Any], clone: Path, environment: dict[str, str], base: str
) -> subprocess.CompletedProcess[str]:
    """Run a `run:` step as the workflow's runner does, with its expressions filled in."""
    variables = {
        name: value.replace("${{ github.event.pull_request.base.sha }}", base)
        for name, value in step.get("env", {}).items()
    }
    assert "${{" not in step["run"] + "".join(variables.values())
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=clone,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_workflow_fails_for_what_a_pull_request_broke_alone(
    stack: Path, tmp_path: Path, programs: dict[str, str]
) -> None:
    workflow = yaml.safe_load((CI / "compare.yml").read_text())
    steps = workflow["jobs"]["compare"]["steps"]
    assert next(step for step in steps if "checkout" in step.get("uses", ""))["with"] == {"fetch-depth": 0}
    base = git(stack, "rev-parse", "HEAD")
    commit(stack, "toy_command.py", MODE, NAN)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(stack), str(clone)], check=True)
    ended = [run_step(step, clone, programs, base) for step in steps if "run" in step]
    assert [step.returncode for step in ended] == [0, 0, 1], [step.stdout + step.stderr for step in ended]
    assert "every series finite: HEAD broke it" in ended[-1].stdout
    assert (tmp_path / "installed").read_text() == "install seatrial[stack] -r requirements.txt\n"
    assert list((clone / "runs").glob("*-compare/report.html"))


def test_the_nightly_keeps_the_last_good_commit(
    stack: Path, tmp_path: Path, programs: dict[str, str]
) -> None:
    """A good night, a night without news, and a bad one."""
    clone, state = tmp_path / "clone", tmp_path / "state"
    subprocess.run(["git", "clone", "-q", str(stack), str(clone)], check=True)
    environment = {**programs, "REPOSITORY": str(clone), "STATE": str(state)}

    def night() -> subprocess.CompletedProcess[str]:
        command = ["bash", str(CI / "nightly.sh")]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    good = git(stack, "rev-parse", "HEAD")
    first = night()
    assert first.returncode == 0, first.stdout + first.stderr
    assert (state / "good").read_text().strip() == good
    assert f"nothing new since {good}" in night().stdout
    commit(stack, "toy_command.py", MODE, NAN)
    last = night()
    assert last.returncode == 1, last.stdout + last.stderr
    assert "HEAD broke" in last.stdout
    assert (state / "good").read_text().strip() == good
