"""A silent fault in 64 commits of training scripts, found by the reward, under every launcher.

Slurm, Docker and Ray are stand-ins (stand_ins.py) that speak the real commands' arguments and output.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

COMMITS, CULPRIT = 65, 41
"""GOOD and 64 suspects."""
METRIC = 'mean(data["train/reward"], -6, -1)'


def _words(hashes: list[str], *options: str) -> tuple[str, ...]:
    command = (sys.executable, "-S", "train.py", "{logs}")
    return ("--metric", METRIC, *options, "--good", hashes[0], "--bad", "HEAD", "--", *command)


def test_a_silent_fault_is_found_by_reward_in_the_runs_of_a_plain_bisection(
    stack: Callable[..., Any], bisect: Callable[..., Any]
) -> None:
    """With a fixed seed the logs agree to the last bit, so 64 commits take 6 runs and the two ends."""
    repository, hashes = stack(COMMITS, CULPRIT)
    before = repository.state()
    called = bisect(repository, *_words(hashes))
    assert called.returncode == 0, called.out + called.err
    answer = called.result()["answer"]
    assert called.suspects() == [hashes[CULPRIT]]
    assert answer["exact"] is True
    assert answer["num_runs"] == 8
    assert repository.state() == before


@pytest.mark.nightly
def test_a_silent_fault_is_found_by_reward_under_noise(
    stack: Callable[..., Any], bisect: Callable[..., Any]
) -> None:
    """Every run has its own seed."""
    repository, hashes = stack(COMMITS, CULPRIT, noisy=True)
    called = bisect(repository, *_words(hashes))
    assert called.returncode == 0, called.out + called.err
    answer = called.result()["answer"]
    assert called.suspects() == [hashes[CULPRIT]]
    assert answer["exact"] is False
    page = (called.journals[-1].parent / "report.html").read_text()
    assert page.count('class="run"') == answer["num_runs"]


@pytest.mark.nightly
def test_logs_of_earlier_runs_and_the_worse_direction_are_taken_from_the_command_line(
    stack: Callable[..., Any], bisect: Callable[..., Any], tmp_path: Path
) -> None:
    """The nightlies of GOOD are there already; the reward falls, which is no rise."""
    repository, hashes = stack(COMMITS, CULPRIT, noisy=True)
    logs = [str(tmp_path / f"nightly{number}") for number in range(6)]
    repository.git("checkout", "--quiet", hashes[0])
    for number, folder in enumerate(logs):
        words = [sys.executable, "-S", "train.py", folder]
        seeded = {**os.environ, "SEATRIAL_RUN_NUMBER": str(1000 + number)}
        subprocess.run(words, cwd=repository.path, env=seeded, check=True)
    repository.git("checkout", "--quiet", "-")
    known = ("--baseline", *logs)
    called = bisect(repository, *_words(hashes, *known, "--worse", "lower"))
    assert called.returncode == 0, called.out + called.err
    assert called.suspects() == [hashes[CULPRIT]]
    assert len(called.result()["task"]["healthy_values"]) == len(logs)
    other = bisect(repository, *_words(hashes, *known, "--worse", "higher"))
    assert other.returncode == 1 and "no culprit" in other.out.lower(), other.out + other.err


def test_a_reward_that_rises_is_no_culprit_unless_any_change_is_asked_for(
    stack: Callable[..., Any], bisect: Callable[..., Any]
) -> None:
    """The name of the series says which values are worse."""
    repository, hashes = stack(6, 2)
    script = (repository.path / "train.py").read_text()
    repository.git("checkout", "--quiet", hashes[1], "--", ".")
    healthy = {"train.py": (repository.path / "train.py").read_text()}
    assert healthy["train.py"] != script
    mended = repository.commit(healthy, "mend")
    asked = ("--metric", METRIC, "--good", hashes[-1], "--bad", mended)
    command = ("--", sys.executable, "-S", "train.py", "{logs}")
    better = bisect(repository, *asked, *command)
    assert better.returncode == 1, better.out + better.err
    assert "worse: lower values: train/reward is reward/mean" in better.out
    assert "--worse either searches for any change" in better.result()["answer"]["advice"]
    either = bisect(repository, *asked, "--worse", "either", *command)
    assert either.suspects() == [mended], either.out + either.err


def test_the_same_fault_is_found_by_a_check(stack: Callable[..., Any], bisect: Callable[..., Any]) -> None:
    repository, hashes = stack(COMMITS, CULPRIT)
    command = (sys.executable, "-S", "train.py", "{logs}")
    check = f"{METRIC} > 0.6"
    called = bisect(repository, "--check", check, "--good", hashes[0], "--bad", "HEAD", "--", *command)
    assert called.suspects() == [hashes[CULPRIT]]
    assert called.result()["answer"]["num_runs"] == 8


LAUNCHERS = {
    "container": ({"CONTAINER": "stack:latest"}, ()),
    "slurm": ({"ACCOUNT": "a", "PARTITION": "p"}, ("--poll", "0.3", "--launch-option=--nodes=1")),
    "ray": ({"RAY_ADDRESS": "http://127.0.0.1:8265"}, ("--poll", "0.3")),
}


@pytest.mark.parametrize(
    "launcher", ["slurm", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("container", "ray"))]
)
def test_every_launcher_reaches_the_same_answer(
    launcher: str, stack: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    repository, hashes = stack(COMMITS, CULPRIT)
    environment, options = LAUNCHERS[launcher]
    called = bisect(repository, *_words(hashes, "--launcher", launcher, *options), **stand_ins, **environment)
    assert called.returncode == 0, called.out + called.err
    answer = called.result()["answer"]
    assert called.suspects() == [hashes[CULPRIT]]
    assert answer["num_runs"] == 8
    assert list(Path(stand_ins["STAND_IN_DIR"]).iterdir())
