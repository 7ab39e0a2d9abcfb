"""A silent fault in 64 commits of training scripts, found by the reward, under every launcher.

Slurm, Docker and Ray are stand-ins (stand_ins.py) that speak the real commands' arguments and output.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

HERE = Path(__file__).parent
CULPRIT = 41


def _training() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bisect_training", HERE / "training.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TRAINING = _training()


@pytest.fixture
def stack(make_repository: Callable[..., Any]) -> Callable[..., tuple[Any, list[str]]]:
    """Return a maker of repositories of training scripts."""

    def make(seed: str, count: int = 65, culprit: int = CULPRIT) -> tuple[Any, list[str]]:
        repository = make_repository()
        hashes = [
            repository.commit(TRAINING.files_of(number, culprit, seed), f"change {number}")
            for number in range(count)
        ]
        return repository, hashes

    return make


@pytest.fixture
def stand_ins(tmp_path: Path) -> dict[str, str]:
    """Install the stand-ins in front of PATH and return the environment that finds them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel", "docker", "ray"):
        path = folder / name
        path.write_text(f"#!{sys.executable} -S\n" + (HERE / "stand_ins.py").read_text())
        path.chmod(0o755)
    return {"PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin", "STAND_IN_DIR": str(tmp_path / "jobs")}


def _answer(called: Any) -> Any:
    return json.loads((called.journals[-1].parent / "result.json").read_text())["answer"]


def _words(hashes: list[str], *options: str) -> tuple[str, ...]:
    command = (sys.executable, "-S", "train.py", "{logs}")
    return ("--metric", TRAINING.METRIC, *options, "--good", hashes[0], "--bad", "HEAD", "--", *command)


def test_a_silent_fault_is_found_by_reward_in_the_runs_of_a_plain_bisection(
    stack: Callable[..., Any], bisect: Callable[..., Any]
) -> None:
    """With a fixed seed the logs agree to the last bit, so 64 commits take 6 runs and the two ends."""
    repository, hashes = stack(TRAINING.FIXED_SEED)
    before = repository.state()
    called = bisect(repository, *_words(hashes))
    assert called.returncode == 0, called.out + called.err
    answer = _answer(called)
    assert [item["commit"] for item in answer["suspects"]] == [hashes[CULPRIT]]
    assert answer["exact"] is True
    assert answer["num_runs"] == 8
    assert repository.state() == before


def test_a_silent_fault_is_found_by_reward_under_noise(
    stack: Callable[..., Any], bisect: Callable[..., Any]
) -> None:
    """Every run has its own seed."""
    repository, hashes = stack(TRAINING.RUN_SEED)
    called = bisect(repository, *_words(hashes))
    assert called.returncode == 0, called.out + called.err
    answer = _answer(called)
    assert [item["commit"] for item in answer["suspects"]] == [hashes[CULPRIT]]
    assert answer["exact"] is False
    page = (called.journals[-1].parent / "report.html").read_text()
    assert page.count('class="run"') == answer["num_runs"]


def test_the_same_fault_is_found_by_a_check(stack: Callable[..., Any], bisect: Callable[..., Any]) -> None:
    repository, hashes = stack(TRAINING.FIXED_SEED)
    command = (sys.executable, "-S", "train.py", "{logs}")
    check = f"{TRAINING.METRIC} > 0.6"
    called = bisect(repository, "--check", check, "--good", hashes[0], "--bad", "HEAD", "--", *command)
    assert [item["commit"] for item in _answer(called)["suspects"]] == [hashes[CULPRIT]]
    assert _answer(called)["num_runs"] == 8


LAUNCHERS = {
    "container": ({"CONTAINER": "stack:latest"}, ()),
    "slurm": ({"ACCOUNT": "a", "PARTITION": "p"}, ("--poll", "0.1", "--launch-option=--nodes=1")),
    "ray": ({"RAY_ADDRESS": "http://127.0.0.1:8265"}, ("--poll", "0.1")),
}


@pytest.mark.parametrize("launcher", list(LAUNCHERS))
def test_every_launcher_reaches_the_same_answer(
    launcher: str, stack: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    repository, hashes = stack(TRAINING.FIXED_SEED, count=17, culprit=11)
    environment, options = LAUNCHERS[launcher]
    called = bisect(repository, *_words(hashes, "--launcher", launcher, *options), **stand_ins, **environment)
    assert called.returncode == 0, called.out + called.err
    answer = _answer(called)
    assert [item["commit"] for item in answer["suspects"]] == [hashes[11]]
    assert answer["num_runs"] == 6
    assert list(Path(stand_ins["STAND_IN_DIR"]).iterdir())


SLURM = ("--launcher", "slurm", "--poll", "0.05")
SITE = {"ACCOUNT": "a", "PARTITION": "p"}


def _shell(hashes: list[str], *options: str) -> tuple[str, ...]:
    verdict = "grep -q ' - 1' logprobs.py && exit 1; exit 0"
    return (
        *SLURM,
        *options,
        "--noise",
        "none",
        "--good",
        hashes[0],
        "--bad",
        "HEAD",
        "--",
        "sh",
        "-c",
        verdict,
    )


def test_a_job_that_never_started_is_blocked_never_good(
    stack: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    """The public launcher counts no log as passed; accounting here even says COMPLETED."""
    repository, hashes = stack(TRAINING.FIXED_SEED, count=5, culprit=3)
    called = bisect(repository, *_shell(hashes), **stand_ins, **SITE, STAND_IN_FAULT="never-starts")
    assert called.returncode == 3
    assert "Pass" not in called.out
    assert "left no exit status (sacct: COMPLETED|0:0)" in called.out


@pytest.mark.parametrize("fault", ["preempted-once", "outage"])
def test_faults_of_the_scheduler_do_not_change_the_answer(
    fault: str, stack: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    """The public launcher takes an outage of squeue for the end of all jobs, and all jobs for passed."""
    repository, hashes = stack(TRAINING.FIXED_SEED, count=9, culprit=6)
    called = bisect(repository, *_shell(hashes), **stand_ins, **SITE, STAND_IN_FAULT=fault)
    assert called.returncode == 0, called.out + called.err
    assert [item["commit"] for item in _answer(called)["suspects"]] == [hashes[6]]


def test_a_job_that_is_not_taken_is_blocked_with_the_schedulers_words(
    stack: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    repository, hashes = stack(TRAINING.FIXED_SEED, count=5, culprit=3)
    called = bisect(repository, *_shell(hashes), **stand_ins, **SITE, STAND_IN_FAULT="refuses")
    assert called.returncode == 3
    assert "QOS policy" in called.out


def test_an_engine_that_cannot_start_is_blocked_though_it_exits_125(
    stack: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    """125 is Docker's own failure here, not the command's skip."""
    repository, hashes = stack(TRAINING.FIXED_SEED, count=5, culprit=3)
    words = ("--launcher", "container", "--good", hashes[0], "--bad", "HEAD", "--", "/bin/true")
    called = bisect(repository, *words, **stand_ins, CONTAINER="x", STAND_IN_FAULT="refuses")
    assert called.returncode == 3
    assert "Blocked" in called.out and "Skip" not in called.out


@pytest.mark.parametrize(
    ("launcher", "needed"), [("slurm", "ACCOUNT"), ("container", "CONTAINER"), ("ray", "RAY_ADDRESS")]
)
def test_a_missing_variable_is_told_before_any_run(
    launcher: str,
    needed: str,
    stack: Callable[..., Any],
    bisect: Callable[..., Any],
    stand_ins: dict[str, str],
) -> None:
    """The public launcher exits 128 there, where its guide says 125."""
    repository, hashes = stack(TRAINING.FIXED_SEED, count=3, culprit=2)
    words = ("--launcher", launcher, "--good", hashes[0], "--bad", "HEAD", "--", "/bin/true")
    called = bisect(repository, *words, **stand_ins)
    assert called.returncode == 2
    assert needed in called.err
    assert called.runs() == []


def test_each_jobs_size_comes_from_its_own_script(
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
