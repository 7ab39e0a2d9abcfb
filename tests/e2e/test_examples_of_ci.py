"""The workflow and the nightly script of examples/ci: their steps run on a small repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.test_compare import MODE, NAN, STACK, TOY, commit, git

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

CI = Path(__file__).resolve().parents[2] / "examples" / "ci"
Night = Callable[[dict[str, str]], subprocess.CompletedProcess[str]]


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


def with_programs(folder: Path, **texts: str) -> dict[str, str]:
    """Return an environment in which these shell scripts come first on the path."""
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def programs(tmp_path: Path, forked_python: str) -> dict[str, str]:
    """An environment whose `seatrial` is ours, and whose `pip` is a stand-in that installs nothing."""
    return with_programs(
        tmp_path / "programs",
        pip=f'echo "$@" >> {tmp_path / "installed"}',
        seatrial=f'exec {forked_python} -m seatrial "$@"',
    )


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


def steps_of_the_workflow() -> list[dict[str, Any]]:
    """Return the steps that run a command; a step before them fetches the base as well."""
    steps = yaml.safe_load((CI / "compare.yml").read_text())["jobs"]["compare"]["steps"]
    assert next(step for step in steps if "checkout" in step.get("uses", ""))["with"] == {"fetch-depth": 0}
    return [step for step in steps if "run" in step]


@pytest.mark.parametrize("status", [0, 1, 3])
def test_the_workflow_ends_as_the_comparison_does(stack: Path, tmp_path: Path, status: int) -> None:
    """With the base of the pull request; `seatrial` is a stand-in whose comparison has this exit status."""
    calls = tmp_path / "calls"
    environment = with_programs(
        tmp_path / "programs",
        pip="true",
        seatrial=f'echo "$@" >> {calls}; if [ "$1" = compare ]; then exit {status}; fi',
    )
    base = git(stack, "rev-parse", "HEAD")
    ended = [run_step(step, stack, environment, base) for step in steps_of_the_workflow()]
    assert [step.returncode for step in ended] == [0, 0, status]
    given = "--target stack.yaml --level 0"
    assert calls.read_text().splitlines() == [
        f"doctor {given}",
        f"compare {base} HEAD {given} --quarantine quarantine.yaml --output runs",
    ]


@pytest.mark.nightly
def test_the_workflow_fails_for_what_a_pull_request_broke_alone(
    stack: Path, tmp_path: Path, programs: dict[str, str]
) -> None:
    base = git(stack, "rev-parse", "HEAD")
    commit(stack, "toy_command.py", MODE, NAN)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(stack), str(clone)], check=True)
    ended = [run_step(step, clone, programs, base) for step in steps_of_the_workflow()]
    assert [step.returncode for step in ended] == [0, 0, 1], [step.stdout + step.stderr for step in ended]
    assert "every series finite: HEAD broke it" in ended[-1].stdout
    assert (tmp_path / "installed").read_text() == "install seatrial[stack] -r requirements.txt\n"
    assert list((clone / "runs").glob("*-compare/report.html"))


@pytest.fixture
def night(stack: Path, tmp_path: Path) -> Night:
    """Return a function that runs the nightly script on a clone, with these variables."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(stack), str(clone)], check=True)

    def run(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        places = {"REPOSITORY": str(clone), "STATE": str(tmp_path / "state")}
        return subprocess.run(
            ["bash", str(CI / "nightly.sh")],
            env={**environment, **places},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def test_the_nightly_script_keeps_the_last_good_commit(stack: Path, tmp_path: Path, night: Night) -> None:
    """A good night, a night without news, and a bad one; the comparison is a stand-in with these exit statuses."""
    calls, status = tmp_path / "calls", tmp_path / "status"
    status.write_text("0")
    environment = with_programs(
        tmp_path / "programs", seatrial=f'echo "$@" >> {calls}; exit "$(cat {status})"'
    )
    before, good = git(stack, "rev-parse", "HEAD~1"), git(stack, "rev-parse", "HEAD")
    assert night(environment).returncode == 0
    assert (tmp_path / "state" / "good").read_text().strip() == good
    assert f"nothing new since {good}" in night(environment).stdout
    commit(stack, "toy_command.py", MODE, NAN)
    bad = git(stack, "rev-parse", "HEAD")
    for expected in (1, 3):
        status.write_text(str(expected))
        assert night(environment).returncode == expected
        assert (tmp_path / "state" / "good").read_text().strip() == good
    given = (
        f"--target stack.yaml --level 0 --quarantine quarantine.yaml --output {tmp_path / 'state' / 'runs'}"
    )
    assert calls.read_text().splitlines() == [
        f"compare {one} {other} {given}" for one, other in [(before, good), (good, bad), (good, bad)]
    ]


@pytest.mark.nightly
def test_the_nightly_names_what_a_commit_broke(
    stack: Path, tmp_path: Path, programs: dict[str, str], night: Night
) -> None:
    """A good night, a night without news, and a bad one."""
    good = git(stack, "rev-parse", "HEAD")
    first = night(programs)
    assert first.returncode == 0, first.stdout + first.stderr
    assert (tmp_path / "state" / "good").read_text().strip() == good
    assert f"nothing new since {good}" in night(programs).stdout
    commit(stack, "toy_command.py", MODE, NAN)
    last = night(programs)
    assert last.returncode == 1, last.stdout + last.stderr
    assert "HEAD broke" in last.stdout
    assert (tmp_path / "state" / "good").read_text().strip() == good
