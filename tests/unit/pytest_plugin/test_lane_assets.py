"""A lane names the command that prepares its assets: run once, kept by content, Blocked where they are missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[[dict[str, str]], None]
Run = Callable[..., pytest.RunResult]

LANES = """
[tool.seatrial.lanes.models]
prepare = "python prepare.py"
assets = ["assets/*.bin"]

[tool.seatrial.lanes.more]
prepare = ["python", "prepare.py"]
assets = "assets/*.bin"
"""
PREPARE = """
from pathlib import Path
Path("assets").mkdir(exist_ok=True)
Path("assets/model.bin").write_text("weights")
with open("runs.txt", "a") as file: file.write("ran\\n")
"""
TESTS = """
import pytest
@pytest.mark.models
def test_model(): assert open("assets/model.bin").read() == "weights"
@pytest.mark.more
def test_more(): pass
def test_default(): pass
"""


@pytest.fixture
def project(write: Write, pytester: pytest.Pytester) -> Path:
    write({"pyproject.toml": LANES, "prepare.py": PREPARE, "test_it.py": TESTS})
    return pytester.path


def _runs(project: Path) -> int:
    return len((project / "runs.txt").read_text().split()) if (project / "runs.txt").exists() else 0


def test_assets_are_prepared_once_and_only_for_an_open_lane(project: Path, run_pytest: Run) -> None:
    run_pytest().assert_outcomes(passed=1, deselected=2)
    run_pytest("--models", "--collect-only")
    assert _runs(project) == 0
    run_pytest("--models", "--more").assert_outcomes(passed=3)
    run_pytest("--models").assert_outcomes(passed=2, deselected=1)
    run_pytest("--models", "-n", "2")
    assert _runs(project) == 1


@pytest.mark.parametrize("change", ["an asset is gone", "an asset is damaged", "the command changed"])
def test_they_are_prepared_again_when_their_content_is_not_what_was_left(
    project: Path, run_pytest: Run, change: str
) -> None:
    run_pytest("--models").assert_outcomes(passed=2, deselected=1)
    if change == "an asset is gone":
        (project / "assets/model.bin").unlink()
    elif change == "an asset is damaged":
        (project / "assets/model.bin").write_text("weightz")
    else:
        (project / "prepare.py").write_text(PREPARE + "# another\n")
    run_pytest("--models").assert_outcomes(passed=2, deselected=1)
    assert _runs(project) == 2


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("pass\n", "run `python prepare.py`: assets/*.bin missing"),
        (
            "raise SystemExit('no token')\n",
            "its output is in .seatrial/prepared/",
        ),
    ],
)
def test_a_lane_whose_assets_are_missing_is_blocked_with_the_command(
    project: Path, run_pytest: Run, program: str, words: str
) -> None:
    (project / "prepare.py").write_text(program)
    outcome = run_pytest("--models")
    assert outcome.ret == 3
    outcome.assert_outcomes(passed=1, skipped=1, deselected=1)
    line = next(
        line for line in outcome.outlines if line.startswith("lane models: run `python prepare.py`: ")
    )
    assert words in line
    assert line.endswith("assets/*.bin missing")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("prepare = 'python x.py'", "assets must name the files that `prepare` creates"),
        ("assets = 'x'", "prepare must be a command"),
        ("prepare = 'x'\nassets = ['/etc/passwd']", "below the project"),
        ("prepare = 3\nassets = ['x']", "prepare must be a command"),
    ],
)
def test_a_wrong_declaration_is_one_message(write: Write, run_pytest: Run, keys: str, words: str) -> None:
    write({"pyproject.toml": f"[tool.seatrial.lanes.a]\n{keys}\n", "test_it.py": "def test_it(): pass\n"})
    outcome = run_pytest()
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR
    assert words in outcome.stderr.str()
