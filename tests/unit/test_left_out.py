"""A run without the nightly tests lists them in its last lines."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.left_out import HEADER

CONFTEST = """
from tests.left_out import LeftOut
def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: long")
    config.pluginmanager.register(LeftOut())
"""
TESTS = """
import pytest
def test_quick(): pass
@pytest.mark.nightly
@pytest.mark.parametrize("one", [1, 2])
def test_long(one): pass
"""


@pytest.mark.parametrize(
    ("words", "passed", "listed"),
    [([], 1, True), (["-n", "2"], 1, True), (["-m", "nightly"], 2, False)],
    ids=["in this process", "in workers", "nightly"],
)
def test_nightly_tests_are_listed_by_file(
    words: list[str], passed: int, listed: bool, tmp_path: Path, repository: Path
) -> None:
    """Also by workers, whose deselected tests pytest-xdist does not count."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    plugins = ["-p", "no:seatrial", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *words, str(tmp_path)],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{passed} passed" in ran.stdout
    assert (HEADER in ran.stdout) == listed
    assert ("    2  " in ran.stdout and "test_it.py\n    2  in all" in ran.stdout) == listed
