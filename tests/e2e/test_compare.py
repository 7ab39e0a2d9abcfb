"""`seatrial compare` on two commits: a stack by a YAML file, and refrl with a planted fault."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.unit.targets.toy_command import save

from seatrial.cli import main
from seatrial.compare.verdicts import BEFORE, BROKE, FIXED, KIND
from seatrial.trials.results import Results
from seatrial.trials.rundir import read_results
from seatrial.verdict import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

TOY = Path(__file__).resolve().parents[1] / "unit" / "targets" / "toy_command.py"
MODE = 'mode, out = given.get("mode", "right")'
NAN = MODE.replace("right", "nan")
STACK: dict[str, Any] = {
    "run": [sys.executable, "{checkout}/toy_command.py"],
    "options": {"kind": "{kind}", "model": "{model}", "out": "{out}", "seed": "{seed}", "steps": "{steps}"},
    "logs": "{out}/run-*",
    "checkpoints": "{out}/checkpoint-{step}",
    "export": "{out}/final",
    "recipes": {"sft-smoke": {"steps": 3}},
}
FINITE, MOVED = "every series finite", "every trainable tensor moved"


def git(folder: Path, *words: str) -> str:
    own = ("-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *own, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, file: str, old: str, new: str) -> None:
    """Commit a change of one line."""
    path = folder / file
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", new[:60])


def compare(
    base: Path, *words: str, python: str = sys.executable
) -> tuple[subprocess.CompletedProcess[str], Results]:
    """Run the command and return how it ended, and what it found."""
    command = [python, "-m", "seatrial", "compare", "--output", str(base / "runs"), *words]
    ran = subprocess.run(command, cwd=base, capture_output=True, text=True, timeout=500, check=False)
    runs = sorted((base / "runs").glob("*/results.json"))
    assert runs, ran.stdout + ran.stderr
    return ran, read_results(runs[-1].parent)


def of_kind(results: Results, kind: str) -> set[str]:
    """Return the names of the verdicts of a kind."""
    return {
        verdict.name
        for part in results.requested_trials()
        for verdict in part.verdicts
        if verdict.details.get(KIND) == kind
    }


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A repository of the toy with its YAML file, and a model outside it; its first commit is sound."""
    repository = tmp_path / "stack"
    repository.mkdir()
    git(repository, "init", "-q")
    shutil.copy(TOY, repository / "toy_command.py")
    (repository / "stack.yaml").write_text(yaml.safe_dump(STACK, sort_keys=False))
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "sound")
    return repository


Compare = Callable[..., tuple[subprocess.CompletedProcess[str], Results]]


@pytest.fixture
def compared(toy: Path, tmp_path: Path, forked_python: str) -> Compare:
    """Return a function that compares two commits of the toy."""

    model = tmp_path / "model"
    save(model, {name: np.ones((3, 5), dtype=np.float32) for name in ("embed", "head")})

    def run(*words: str) -> tuple[subprocess.CompletedProcess[str], Results]:
        target = ("--repo", str(toy), "--target", str(toy / "stack.yaml"), "--trial", "sft-smoke")
        return compare(tmp_path, *words, *target, f"model={model}", python=forked_python)

    return run


def test_a_new_failure_a_fixed_one_and_what_was_broken_before(
    toy: Path, tmp_path: Path, compared: Compare
) -> None:
    """Three commits: a sound one, one that logs NaN, and one that also exports the initial model."""
    commit(toy, "toy_command.py", MODE, NAN)
    commit(toy, "toy_command.py", 'if mode == "stale-export" else weights', "if mode else weights")
    before = git(toy, "status", "--porcelain"), git(toy, "worktree", "list"), git(toy, "rev-parse", "HEAD")
    ran, results = compared("HEAD~1", "HEAD")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    broken = of_kind(results, BROKE)
    assert MOVED in broken
    assert FINITE not in broken
    assert FINITE in of_kind(results, BEFORE)
    assert f"Fail      {MOVED}: HEAD broke it: HEAD fails in 2 of 2 seeds" in ran.stdout
    assert before == (
        git(toy, "status", "--porcelain"), git(toy, "worktree", "list"), git(toy, "rev-parse", "HEAD"),
    )  # fmt: skip
    path = next((tmp_path / "runs").iterdir())
    page, report = (path / "report.html").read_text(), (path / "report.md").read_text()
    assert "BASE-seed-0" in page
    assert "HEAD-seed-1" in page
    assert before[2][:12] in report
    assert (path / "junit.xml").is_file()

    ran, results = compared("HEAD", "HEAD~2", "--seeds", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert of_kind(results, FIXED) >= {FINITE, MOVED}
    assert of_kind(results, BROKE) == set()


@pytest.mark.nightly
def test_a_failure_in_quarantine_does_not_decide(toy: Path, tmp_path: Path, compared: Compare) -> None:
    """And an entry that matches none is to be removed."""
    commit(toy, "toy_command.py", MODE, NAN)
    commit(toy, "toy_command.py", 'if mode == "stale-export" else weights', "if mode else weights")
    file = tmp_path / "quarantine.yaml"
    file.write_text(
        "- {trial: sft-smoke, verdict: '*', reason: issue 7, until: 2999-12-31}\n"
        "- {trial: arch-moe, reason: issue 8, until: 2999-12-31}\n"
    )
    ran, results = compared("HEAD~1", "HEAD", "--seeds", "1", "--quarantine", str(file))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert MOVED in of_kind(results, BROKE)
    assert "entry 2 (arch-moe: *) matches no failure; remove it (issue 8)" in ran.stdout
    assert "issue 7" in (sorted((tmp_path / "runs").iterdir())[-1] / "report.md").read_text()


def test_what_cannot_be_run_on_either_side_is_blocked_and_not_passed(toy: Path, compared: Compare) -> None:
    """The program of both commits is missing."""
    missing = yaml.safe_dump({**STACK, "run": ["no-such-program-at-all"]}, sort_keys=False)
    (toy / "stack.yaml").write_text(missing)
    commit(toy, "toy_command.py", MODE, NAN)
    ran, results = compared("HEAD~1", "HEAD")
    assert ran.returncode == 3, ran.stdout + ran.stderr
    assert results.outcome is Outcome.BLOCKED
    assert "no-such-program-at-all" in ran.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["HEAD"], "1 commits given; name BASE and HEAD"),
        (["HEAD", "no-such-commit"], "HEAD 'no-such-commit' is not a commit of"),
        (["HEAD", "HEAD"], "are the same commit"),
        (["HEAD~1", "HEAD", "--seeds", "0"], "--seeds 0: give 1 or more"),
        (["HEAD~1", "HEAD", "--adapter", "dpo"], "--adapter goes with --relations"),
        (["--python", "no-such-environment", "x"], "no interpreter and no environment"),
        (["--path", "no-such-folder", "x"], "no such folder"),
        (["--python", "python3", "python3", "--mount", "/tmp"], "--mount goes with --image"),
        (["HEAD~1", "HEAD", "--quarantine", "no.yaml"], "--quarantine no.yaml"),
        (["HEAD~1", "HEAD", "--repo", "/"], "is not in a git repository"),
    ],
)
def test_wrong_use_is_one_line_before_anything_runs(
    words: list[str],
    message: str,
    toy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    commit(toy, "toy_command.py", MODE, NAN)
    monkeypatch.chdir(toy)
    assert main(["compare", *words]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("seatrial compare: ")
    assert message in line
    assert not (toy / "runs").exists()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_fault_planted_in_refrl_is_named_exactly(tmp_path: Path, repository: Path) -> None:
    """The fault scales advantages wrongly: what recomputes advantages fails at HEAD, and nothing else does."""
    clone = tmp_path / "clone"
    shutil.copytree(
        repository / "src" / "refrl", clone / "src" / "refrl", ignore=shutil.ignore_patterns("__pycache__")
    )
    git(clone, "init", "-q")
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "sound")
    right = "group_std(rewards, index_B) + config.epsilon"
    commit(clone, "src/refrl/algorithms/advantages.py", right, right.replace("+", "+ 0.5 +"))
    ran, results = compare(tmp_path, "HEAD~1", "HEAD", "--repo", str(clone), "--level", "0")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert of_kind(results, BROKE) == {"guards hold", "ledger: advantages recomputed equal the logged"}
    assert of_kind(results, BEFORE) == set()
    run = next((tmp_path / "runs").iterdir())
    for side in ("BASE", "HEAD"):
        identity = json.loads(next((run / "runs" / f"{side}-seed-0").glob("*/identity.json")).read_text())
        files = {item["file"] for item in identity["runs"]["grpo-smoke"]}
        assert len(files) == 1
        assert "/trees/place-" in next(iter(files))
