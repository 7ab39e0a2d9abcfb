"""What the public launcher gets wrong, each with the right behaviour here.

The numbers are those of the list in test_public_driver_defects.py. Slurm and Docker are stand-ins (stand_ins.py).

11. a job that never produced its log is not counted, and the whole is green: the commit becomes good
12. an outage of squeue reads as the end of all jobs, with the same green result
13. the exit status is never read: a crash after the table of metrics is a pass
14. the word FAIL anywhere below the table, `FAIL_FAST` too, is a failure
15. the number of GPUs of one script, or one exported by hand, leaks into the next request
16. missing settings end with exit status 128, where the guide says 125
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

SLURM = ("--launcher", "slurm", "--poll", "0.3")
SITE = {"ACCOUNT": "a", "PARTITION": "p"}


def _shell(hashes: list[str], *options: str) -> tuple[str, ...]:
    verdict = "grep -q ' - 1' logprobs.py && exit 1; exit 0"
    words = ("--noise", "none", "--good", hashes[0], "--bad", "HEAD")
    return (*SLURM, *options, *words, "--", "sh", "-c", verdict)


def test_11_a_job_that_never_started_is_blocked_never_good(
    stack: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    """The public launcher counts no log as passed; accounting here even says COMPLETED."""
    repository, hashes = stack(5, 3)
    called = bisect(repository, *_shell(hashes), **stand_ins, **SITE, STAND_IN_FAULT="never-starts")
    assert called.returncode == 3
    assert "Pass" not in called.out
    assert "left no exit status (sacct: COMPLETED|0:0)" in called.out


@pytest.mark.parametrize("fault", [pytest.param("preempted-once", marks=pytest.mark.nightly), "outage"])
def test_12_faults_of_the_scheduler_do_not_change_the_answer(
    fault: str, stack: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    """The public launcher takes an outage of squeue for the end of all jobs, and all jobs for passed."""
    repository, hashes = stack(9, 6)
    called = bisect(repository, *_shell(hashes), **stand_ins, **SITE, STAND_IN_FAULT=fault)
    assert called.returncode == 0, called.out + called.err
    assert called.suspects() == [hashes[6]]


@pytest.mark.parametrize(
    ("number", "after"),
    [
        (13, "exit 1"),
        pytest.param(13, "kill -SEGV $$", marks=pytest.mark.nightly),
        (14, "echo FAIL_FAST=1; echo 0 FAILED; exit 0"),
    ],
)
def test_13_and_14_the_verdict_is_the_jobs_exit_status_and_metrics_not_words(
    number: int, after: str, stack: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    """Every job logs good metrics and prints the table; from commit 2 on `after` follows."""
    repository, hashes = stack(4, 99)
    python = f"{sys.executable} -S"
    script = f"{python} train.py $0 && echo Metric Checks && grep -qE 'note: [01]$' recipes/grpo.yaml || {{ {after}; }}"
    check = 'mean(data["train/reward"], -6, -1) > 0.6'
    words = ("--noise", "none", "--on-signal", "fail", "--check", check, "--good", hashes[0], "--bad", "HEAD")
    called = bisect(repository, *SLURM, *words, "--", "sh", "-c", script, "{logs}", **stand_ins, **SITE)
    assert called.suspects() == ([hashes[2]] if number == 13 else []), called.out
    assert called.returncode == (0 if number == 13 else 1)


def test_a_job_that_is_not_taken_is_blocked_with_the_schedulers_words(
    stack: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    repository, hashes = stack(5, 3)
    called = bisect(repository, *_shell(hashes), **stand_ins, **SITE, STAND_IN_FAULT="refuses")
    assert called.returncode == 3
    assert "QOS policy" in called.out


def test_an_engine_that_cannot_start_is_blocked_though_it_exits_125(
    stack: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    """125 is Docker's own failure here, not the command's skip."""
    repository, hashes = stack(5, 3)
    words = ("--launcher", "container", "--good", hashes[0], "--bad", "HEAD", "--", "/bin/true")
    called = bisect(repository, *words, **stand_ins, CONTAINER="x", STAND_IN_FAULT="refuses")
    assert called.returncode == 3
    assert "Blocked" in called.out and "Skip" not in called.out


@pytest.mark.parametrize(
    ("launcher", "needed"), [("slurm", "ACCOUNT"), ("container", "CONTAINER"), ("ray", "RAY_ADDRESS")]
)
def test_16_a_missing_variable_is_told_before_any_run(
    launcher: str,
    needed: str,
    stack: Callable[..., Any],
    bisect: Callable[..., Any],
    stand_ins: dict[str, str],
) -> None:
    """The public launcher exits 128 there, where its guide says 125."""
    repository, hashes = stack(3, 2)
    words = ("--launcher", launcher, "--good", hashes[0], "--bad", "HEAD", "--", "/bin/true")
    called = bisect(repository, *words, **stand_ins)
    assert called.returncode == 2
    assert needed in called.err
    assert called.runs() == []


@pytest.mark.nightly
def test_15_each_jobs_size_comes_from_its_own_script(
    make_repository: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    """A value exported by hand does not leak into the request, and nothing of the script is run to read it."""
    repository = make_repository()
    config = (
        "# ===== BEGIN CONFIG =====\nNUM_NODES=2\nGPUS_PER_NODE=4\nNUM_MINUTES=30\n# ===== END CONFIG =====\n"
    )
    hashes = [
        repository.commit({"t.sh": f"{config}exit {int(n == 2)}\n", "n": str(n)}, str(n)) for n in range(3)
    ]
    words = (*SLURM, "--noise", "none", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    called = bisect(repository, *words, **stand_ins, **SITE, GPUS_PER_NODE="8")
    assert called.returncode == 0, called.out + called.err
    for path in Path(stand_ins["STAND_IN_DIR"]).glob("1*.json"):
        options = json.loads(path.read_text())["options"]
        assert {"--nodes=2", "--gres=gpu:4", "--time=30"} <= set(options)
