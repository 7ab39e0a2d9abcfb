"""What `seatrial new` writes runs at once, with its test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.cli import main
from seatrial.cli.new import KINDS, stacks

HERE = {"bare"}
"""Adapters that need nothing but the reference stack's environment; the others are held beside their libraries."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of each kind, as written."""
    made = tmp_path_factory.mktemp("own") / "parts"
    for kind in KINDS:
        assert main(["new", kind, f"my_{kind}", "--output", str(made)]) == 0
    for stack in stacks():
        assert main(["new", "adapter", stack, "--output", str(made)]) == 0
    return made


def in_folder(folder: Path, *words: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run a module of Python there."""
    places = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [python, "-m", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )


def test_the_files_and_their_tests_run_as_they_are_written(folder: Path) -> None:
    """All in one folder, each with a test that passes."""
    names = [f"test_my_{name}.py" for name in (*KINDS, *HERE)]
    ran = in_folder(folder, "pytest", "-q", "-rA", "-p", "no:cacheprovider", *names)
    assert ran.returncode == 0, ran.stdout
    assert all(f"PASSED {name}::" in ran.stdout for name in names), ran.stdout


def test_what_is_written_follows_the_rules_of_style(folder: Path) -> None:
    """Those of the package itself; nothing is left unfilled."""
    written = sorted(folder.glob("*.py"))
    assert len(written) == 2 * (len(KINDS) + len(stacks()))
    assert not [path for path in written if "{{" in path.read_text()]
    configuration = str(Path(__file__).resolve().parents[3] / "pyproject.toml")
    words = ["--config", configuration, "--no-cache", "--ignore", "I", *map(str, written)]
    checked = in_folder(folder, "ruff", "check", *words)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("stack", stacks())
def test_an_adapter_is_at_most_thirty_lines(folder: Path, stack: str) -> None:
    """Blank lines and docstring with it."""
    assert len((folder / f"my_{stack}.py").read_text().splitlines()) <= 30


def test_an_adapter_is_held_to_the_relations_as_the_command_line_says(
    folder: Path, forked_python: str
) -> None:
    """By the line that the command prints."""
    ran = in_folder(folder, "seatrial", "relations", "my_bare:MyBare", "--seed", "0", python=forked_python)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Pass          R17.advantages" in ran.stdout


def test_how_it_is_used_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The entry point of each kind, and the test to try."""
    assert main(["new", "relation", "my_law", "--output", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"python -m pytest -q {tmp_path / 'test_my_law.py'}" in shown
    assert '[project.entry-points."seatrial.relations"]\n    my_law = "my_law"' in shown


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the file nor its test."""
    (tmp_path / "test_mine.py").write_text("mine")
    assert main(["new", "reader", "mine", "--output", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test_mine.py"]


@pytest.mark.parametrize("name", ["My-Part", "1st", "a.b", ""])
def test_a_name_that_python_cannot_import_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what a name is."""
    assert main(["new", "target", name, "--output", str(tmp_path)]) == 2
    assert "is not a valid module name" in capsys.readouterr().err
