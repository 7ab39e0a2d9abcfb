"""What `refrl new` writes runs at once, with its test, under the command line that it prints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from refrl.cli import main
from refrl.cli.new import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_and_its_test_run_as_they_are_written(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a folder of its own."""
    assert main(["new", kind, "my_part", "--output", str(tmp_path / "own")]) == 0
    shown = capsys.readouterr().out
    assert f"wrote {tmp_path / 'own' / 'my_part.py'}" in shown
    assert "my_part:" in shown.splitlines()[-1]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_part.py"],
        cwd=tmp_path / "own",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "own")},
    )
    assert ran.returncode == 0, ran.stdout
    assert " passed" in ran.stdout
    assert "{{" not in (tmp_path / "own" / "my_part.py").read_text()


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the file nor its test."""
    (tmp_path / "test_mine.py").write_text("mine")
    assert main(["new", "task", "mine", "--output", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert not (tmp_path / "mine.py").exists()
    assert (tmp_path / "test_mine.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["My-Part", "1st", "a.b", ""])
def test_a_name_that_python_cannot_import_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what a name is."""
    assert main(["new", "loss", name, "--output", str(tmp_path)]) == 2
    assert "is not a module name" in capsys.readouterr().err
