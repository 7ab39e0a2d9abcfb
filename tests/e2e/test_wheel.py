"""What the wheel holds is enough: in an empty folder outside the checkout, the commands of the README run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

Run = Callable[..., "subprocess.CompletedProcess[str]"]
NOT_CODE = ("src", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the files that git knows or would take, in a copy: a build leaves traces in its sources."""
    copy = tmp_path_factory.mktemp("sources")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *NOT_CODE],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (repository / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, copy / name)
    out = tmp_path_factory.mktemp("wheel")
    words = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(copy)]
    built = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False, cwd=out
    )
    assert built.returncode == 0, built.stderr[-3000:]
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def run(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that runs a module of the installed wheel in an empty folder; its dependencies are ours."""
    site = tmp_path_factory.mktemp("site")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-index",
            "--target",
            str(site),
            str(wheel),
        ],
        check=True,
        capture_output=True,
    )
    folder = tmp_path_factory.mktemp("empty")
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=580,
        )

    where = command("-c", "import refrl, seatrial; print(refrl.__file__); print(seatrial.__file__)")
    assert [line.startswith(str(site)) for line in where.stdout.splitlines()] == [True, True], where.stdout
    return command


def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path, repository: Path) -> None:
    """Recipes, suites, vocabularies, templates: nothing that lies beside the code is left behind."""
    packed = set(zipfile.ZipFile(wheel).namelist())
    sources = repository / "src"
    files = {
        str(path.relative_to(sources))
        for package in ("refrl", "seatrial")
        for path in (sources / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert sorted(files - packed) == []


@pytest.mark.nightly
def test_level_0_passes(run: Run) -> None:
    """The main job, with everything it needs found in the package."""
    ran = run("-m", "seatrial", "run", "--level", "0", "--output", "trial")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Pass" in ran.stdout


@pytest.mark.nightly
def test_relations_of_the_reference_run(run: Run) -> None:
    """One law on one seed; the whole battery is tested elsewhere."""
    ran = run(
        "-m", "seatrial", "relations", "--target", "reference", "--relation", "R12.advantages", "--seed", "0"
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Pass" in ran.stdout


@pytest.mark.nightly
def test_a_recipe_trains_by_its_name(run: Run) -> None:
    """From a model that the package makes."""
    made = run("-m", "refrl", "make-model", "--output", "model")
    assert made.returncode == 0, made.stderr
    ran = run(
        "-m", "refrl", "grpo", "--config", "grpo-smoke", "policy.model_name=model", "grpo.max_num_steps=1"
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "step 1/1" in ran.stdout
    checked = run("-m", "seatrial", "check", "outputs/grpo-smoke/logs", 'max(data["train/grad_norm"]) > 0')
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_suites_are_found_by_name(run: Run) -> None:
    """And what the commands `new` start from comes with it."""
    asked = run("-m", "seatrial", "check", "none", "--suite", "learnin")
    assert asked.returncode == 2
    assert "did you mean 'learning'?" in asked.stderr
    made = run("-m", "refrl", "new", "verifier", "mine")
    assert made.returncode == 0, made.stderr
    made = run("-m", "seatrial", "new", "adapter", "bare")
    assert made.returncode == 0, made.stderr
