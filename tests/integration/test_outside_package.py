"""The package in examples/ is installed as it is, and each of its parts is used by its name with no edit inside."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def run(repository: Path, tmp_path_factory: pytest.TempPathFactory, forked_python: str) -> Run:
    """Return a function that runs a module with the package installed beside ours."""
    source = tmp_path_factory.mktemp("source") / "outside_package"
    shutil.copytree(repository / "examples" / "outside_package", source)
    site = tmp_path_factory.mktemp("site")
    words = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(site), str(source)]
    installed = subprocess.run(
        [sys.executable, "-m", "pip", "install", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=site,
    )
    assert installed.returncode == 0, installed.stderr[-3000:]
    folder = tmp_path_factory.mktemp("work")
    places = [place for place in [os.environ.get("PYTHONPATH")] if place]

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [forked_python, "-m", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *places])},
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )

    assert command("refrl", "make-model", "--output", "model").returncode == 0
    shutil.copy(source / "run.kv", folder)
    (folder / "high.kv").write_text("it=1 reward=0.5\nit=2 reward=4.0\n")
    (folder / "torn.kv").write_text("it=1 loss=0.5\nit=2 lo")
    return command


def trained(run: Run, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one step of GRPO."""
    return run(
        "refrl", "grpo", "--config", "grpo-smoke", "policy.model_name=model", "grpo.max_num_steps=1",
        "checkpointing.enabled=false", "grpo.val_at_start=false", "grpo.val_at_end=false", f"logger.log_dir={name}",
        *words,
    )  # fmt: skip


def test_the_loss_and_the_task_train(run: Run) -> None:
    """By their names, under their own options, on what the task names to judge with; one of another name is refused."""
    own = ("data.task=subtract", "data.task_args={limit: 30}", "data.verifier=null")
    ran = trained(run, "a", "loss_fn.kind=weighted_reinforce", "loss_fn.options.positive_weight=0.5", *own)
    assert ran.returncode == 0, ran.stderr
    checked = run("seatrial", "check", "a", 'min(data["train/grad_norm"]) > 0')
    assert checked.returncode == 0, checked.stdout
    refused = trained(run, "b", "loss_fn.kind=weighted_reinforce", "loss_fn.options.positive_wait=0.5")
    assert refused.returncode == 2
    assert "the nearest known key is 'loss_fn.options.positive_weight'" in refused.stderr
    misnamed = trained(run, "c", "loss_fn.kind=weighted_reinforced")
    assert misnamed.returncode == 2
    assert "did you mean 'weighted_reinforce'?" in misnamed.stderr


def test_the_verifier_trains(run: Run) -> None:
    """An answer that it cannot judge is counted and named."""
    ran = trained(run, "e", "data.verifier=near_number", "grpo.max_verifier_error_share=1")
    assert ran.returncode == 0, ran.stderr
    assert (
        "16 verifier errors: row 0: my_stack.verifier:near_number raised ValueError: invalid literal"
        in ran.stdout
    )


def test_the_reader_reads(run: Run) -> None:
    """A whole log is judged; a torn one never passes."""
    assert run("seatrial", "check", "run.kv", 'max(data["train/loss"]) < 1').returncode == 0
    assert run("seatrial", "check", "run.kv", 'max(data["train/loss"]) < 0.45').returncode == 1
    assert run("seatrial", "check", "torn.kv", 'max(data["train/loss"]) < 1').returncode == 3


def test_the_rule_watches(run: Run) -> None:
    """The log that the package's own reader reads: in order, then with a reward that cannot be."""
    sound = run("seatrial", "watch", "run.kv", "--rule", "reward-outside-range")
    assert sound.returncode == 0, sound.stdout + sound.stderr
    broken = run("seatrial", "watch", "high.kv", "--rule", "my-stack")
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "the mean reward is one that the verifier cannot give" in broken.stdout


def test_the_commands_of_its_readme_work(run: Run, repository: Path) -> None:
    """In order, each with status 0; the fixture has installed the package, and another test runs the trial."""
    readme = (repository / "examples/outside_package/README.md").read_text()
    block = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)[0]
    install, *commands, trial = [shlex.split(line) for line in block.splitlines()]
    assert install[:2] == ["pip", "install"]
    assert trial == ["seatrial", "run", "--target", "my-stack", "--level", "0"]
    for words in commands:
        if words[1] != "make-model":
            ran = run(*words)
            assert ran.returncode == 0, f"{words}: {ran.stdout}{ran.stderr}"


def test_the_relation_and_the_target_are_known(run: Run) -> None:
    """The target's components are held to the relation."""
    ran = run("seatrial", "relations", "--target", "my-stack", "--relation", "MY1", "--seed", "0")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "MY1.advantages" in ran.stdout


@pytest.mark.e2e
def test_the_target_goes_through_level_0(run: Run) -> None:
    """Its loss, on trial."""
    ran = run("seatrial", "run", "--target", "my-stack", "--level", "0", "-v")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "loss_fn.kind=weighted_reinforce" in ran.stdout
    refused = run("seatrial", "run", "--target", "my-stack", "--level", "0", "loss_fn.kind=gspo")
    assert refused.returncode == 2
