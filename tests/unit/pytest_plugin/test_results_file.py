"""`unit_results.json` tells of this session and of no other, whatever happens to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILE = "tests/unit/test_it.py"
TRACKED = "def test_it(tracker): tracker.track('x', 1)\n"

Write = Callable[[dict[str, str]], None]
Run = Callable[..., pytest.RunResult]
Results = Callable[..., dict[str, Any]]


def test_without_tracker_and_without_asking_nothing_is_written(
    write: Write, run_pytest: Run, pytester: pytest.Pytester
) -> None:
    write({FILE: "def test_it(): pass\n"})
    run_pytest().assert_outcomes(passed=1)
    assert not list(pytester.path.rglob("unit_results*"))


def test_asked_for_it_is_written_where_asked(write: Write, run_pytest: Run, results: Results) -> None:
    write({FILE: "def test_it(): pass\n"})
    run_pytest("--tracker-results=out/result.json").assert_outcomes(passed=1)
    assert results("out/result.json")["summary"]["outcomes"] == {"passed": 1}


def test_the_project_may_name_the_place(write: Write, run_pytest: Run, results: Results) -> None:
    write({FILE: TRACKED, "pyproject.toml": '[tool.seatrial.tracker]\nresults = "build/r.json"\n'})
    run_pytest()
    assert results("build/r.json")["metrics"]["test_it::test_it"]["x"] == 1


def test_an_unknown_setting_is_refused_by_name(write: Write, run_pytest: Run) -> None:
    write({FILE: TRACKED, "pyproject.toml": '[tool.seatrial.tracker]\nresult = "r.json"\n'})
    outcome = run_pytest()
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR
    outcome.stderr.fnmatch_lines(["*tool.seatrial.tracker.result is unknown; known keys: results*"])


def test_a_session_that_collects_nothing_says_so(write: Write, run_pytest: Run, results: Results) -> None:
    write({FILE: TRACKED})
    run_pytest()
    assert run_pytest("-k", "no_such_test").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    found = results()
    assert found["exit_status"] == 5
    assert found["metrics"] == {}
    assert found["note"].startswith("no test ran")


@pytest.mark.parametrize("asked", [False, True])
def test_collecting_only_is_not_taken_for_a_run(
    write: Write, run_pytest: Run, results: Results, asked: bool
) -> None:
    write({FILE: TRACKED})
    run_pytest()
    run_pytest("--collect-only", *(["--tracker-results=tests/unit/unit_results.json"] if asked else []))
    found = results()
    # Editors collect all the time: only a result that was asked for replaces the last run's.
    assert found["note"] == ("only collected: no test was run" if asked else "")
    assert bool(found["metrics"]) is not asked


def test_a_broken_test_file_leaves_a_result_that_is_not_green(
    write: Write, run_pytest: Run, results: Results
) -> None:
    write({FILE: TRACKED})
    run_pytest()
    write({FILE: "import no_such_module_here\n"})
    run_pytest()
    found = results()
    assert (found["exit_status"], found["metrics"]) == (2, {})


OUTCOMES = """
import pytest

@pytest.fixture
def broken(tracker): raise RuntimeError
@pytest.fixture
def breaks_later(tracker):
    yield
    raise RuntimeError

def test_pass(tracker): pass
def test_fail(tracker): assert False
def test_skip(tracker): pytest.skip("why")
@pytest.mark.xfail
def test_xfail(tracker): assert False
@pytest.mark.xfail
def test_xpass(tracker): pass
def test_setup(broken): pass
def test_teardown(breaks_later): pass
"""


def test_the_outcome_of_every_test_is_kept(write: Write, run_pytest: Run, results: Results) -> None:
    write({FILE: OUTCOMES})
    run_pytest()
    found = {
        nodeid.partition("::test_")[2]: record["outcome"] for nodeid, record in results()["tests"].items()
    }
    assert found == {
        "pass": "passed",
        "fail": "failed",
        "skip": "skipped",
        "xfail": "xfailed",
        "xpass": "xpassed",
        "setup": "error",
        "teardown": "error",
    }


def test_a_worker_that_dies_costs_one_test(write: Write, run_pytest: Run, results: Results) -> None:
    write(
        {
            FILE: """
import os, pytest

@pytest.mark.parametrize("n", range(6))
def test_ok(tracker, n): tracker.track("n", n)

def test_dies(tracker):
    tracker.track("x", 1)
    os._exit(9)
"""
        }
    )
    outcome = run_pytest("-n", "2")
    outcome.assert_outcomes(passed=6, failed=1)
    found = results()
    assert found["tests"][f"{FILE}::test_dies"]["outcome"] == "crashed"
    assert [found["metrics"][f"test_it::test_ok[{n}]"]["n"] for n in range(6)] == list(range(6))
    assert found["exit_status"] == 1


def _start(project: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "seatrial.pytest_plugin",
            "-p",
            "no:cacheprovider",
            *arguments,
        ],
        cwd=project,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )


WAITING = """
import os, time
from pathlib import Path

def test_it(tracker, request):
    tracker.track("who", os.environ["WHO"])
    here = Path(__file__).parent
    (here / ("ready-" + os.environ["WHO"])).touch()
    deadline = time.monotonic() + 60
    while not (here / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
"""


def _until_ready(project: Path, process: subprocess.Popen[str], who: str) -> None:
    while not (project / "tests/unit" / f"ready-{who}").exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            raise AssertionError(process.communicate(timeout=0.05)[0])


def test_two_sessions_at_once_leave_two_whole_histories_and_one_whole_result(
    write: Write, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, results: Results
) -> None:
    write({FILE: WAITING})
    running = []
    for who in ("first", "second"):
        monkeypatch.setenv("WHO", who)
        running.append(_start(pytester.path))
        _until_ready(pytester.path, running[-1], who)
    write({"tests/unit/go": ""})
    for process in running:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
    history = [json.loads(p.read_text()) for p in (pytester.path / "tests/unit/unit_results").glob("*.json")]
    assert sorted(h["metrics"]["test_it::test_it"]["who"] for h in history) == ["first", "second"]
    assert results()["metrics"]["test_it::test_it"]["who"] in ("first", "second")


def test_a_killed_session_does_not_leave_the_last_ones_result(
    write: Write,
    run_pytest: Run,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    results: Results,
) -> None:
    write({FILE: TRACKED})
    run_pytest()
    assert results()["exit_status"] == 0
    write({FILE: WAITING})
    monkeypatch.setenv("WHO", "killed")
    process = _start(pytester.path)
    _until_ready(pytester.path, process, "killed")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    found = results()
    assert (found["exit_status"], found["metrics"]) == (None, {})
    assert found["note"] == "the session has not finished"
    assert not list(pytester.path.rglob("*.tmp"))


def test_coverage_is_the_total_percent(write: Write, run_pytest: Run, results: Results) -> None:
    pytest.importorskip("pytest_cov")
    write({"mod.py": "X = 1\n", FILE: "import mod\ndef test_it(tracker): assert mod.X\n"})
    run_pytest("--cov=mod", "-p", "no:cacheprovider", plugins=("pytest_cov",)).assert_outcomes(passed=1)
    assert results()["coverage"] == 100.0


def test_without_coverage_the_value_is_absent_and_no_number(
    write: Write, run_pytest: Run, results: Results
) -> None:
    write({FILE: TRACKED})
    run_pytest()
    assert results()["coverage"] is None


def test_a_session_that_tracks_nothing_leaves_result_and_history_alone(
    write: Write, run_pytest: Run, pytester: pytest.Pytester
) -> None:
    write({FILE: TRACKED, "tests/unit/test_other.py": "def test_other(): pass\n"})
    run_pytest()
    before = {path: path.read_text() for path in pytester.path.rglob("unit_results/*.json")}
    result = (pytester.path / "tests/unit/unit_results.json").read_text()
    run_pytest("tests/unit/test_other.py").assert_outcomes(passed=1)
    assert (pytester.path / "tests/unit/unit_results.json").read_text() == result
    # A session whose tracking tests were all left out says so in the result, and is no history.
    run_pytest("-k", "other").assert_outcomes(passed=1, deselected=1)
    assert (pytester.path / "tests/unit/unit_results.json").read_text() != result
    assert {path: path.read_text() for path in pytester.path.rglob("unit_results/*.json")} == before


def test_the_history_keeps_as_many_sessions_as_the_project_says(
    write: Write, run_pytest: Run, pytester: pytest.Pytester
) -> None:
    write({FILE: TRACKED, "pyproject.toml": "[tool.seatrial.tracker]\nsessions = 2\n"})
    seen = []
    for _ in range(3):
        run_pytest()
        seen.append(sorted(path.name for path in pytester.path.rglob("unit_results/*.json")))
    assert [len(names) for names in seen] == [1, 2, 2]
    assert seen[2][0] == seen[1][1]


@pytest.mark.parametrize("value", ["0", "true", '"many"'])
def test_a_number_of_sessions_that_cannot_be_is_refused(write: Write, run_pytest: Run, value: str) -> None:
    write({FILE: TRACKED, "pyproject.toml": f"[tool.seatrial.tracker]\nsessions = {value}\n"})
    outcome = run_pytest()
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR
    assert "tool.seatrial.tracker.sessions must be a number of sessions" in outcome.stderr.str()
