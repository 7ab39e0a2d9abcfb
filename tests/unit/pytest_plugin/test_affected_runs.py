"""`--affected` over several runs: habits of testmon, failures, workers, crashes, other plugins, damaged maps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[[dict[str, str]], None]
Run = Callable[..., pytest.RunResult]

PROJECT = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
    "a.py": "def f(): return 1\n",
    "b.py": "def f(): return 2\n",
    "tests/test_a.py": "import a\ndef test_a(): assert a.f() > 0\ndef test_also(): assert a.f() > 0\n",
    "tests/test_b.py": "import b\ndef test_b(): assert b.f() > 0\n",
}
WORKERS = [
    pytest.param((), id="one process"),
    pytest.param(("-n", "2"), id="xdist", marks=pytest.mark.nightly),
]


def _chosen(outcome: pytest.RunResult) -> tuple[int, int]:
    match = re.search(r"affected: (\d+) of (\d+) tests", outcome.stdout.str())
    assert match is not None, outcome.stdout.str()
    return int(match[1]), int(match[2])


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_first_seeds_then_selects_then_leaves_out_everything_with_a_word(
    write: Write, run_pytest: Run, workers: tuple[str, ...]
) -> None:
    write(PROJECT)
    first = run_pytest("--affected", *workers)
    first.assert_outcomes(passed=3)
    first.stdout.fnmatch_lines(["affected: there is no map yet: all 3 tests run and create it"])
    write({"a.py": "def f(): return 3\n"})
    second = run_pytest("--affected", *workers)
    assert second.ret == 0
    second.assert_outcomes(passed=2, deselected=0 if workers else 1)
    second.stdout.fnmatch_lines(["affected: 2 of 3 tests chosen, 1 left out", "  2: a.py (f) changed"])
    third = run_pytest("--affected", *workers)
    assert third.ret == pytest.ExitCode.NO_TESTS_COLLECTED  # an empty selection is not green
    third.stdout.fnmatch_lines(
        [
            "affected: 0 of 3 tests chosen, 3 left out",
            "  no dependency of any test changed since it last passed",
        ]
    )


def test_k_always_runs_its_matches(write: Write, run_pytest: Run) -> None:
    write(PROJECT)
    run_pytest("--affected")
    run_pytest("--affected", "-k", "also").assert_outcomes(passed=1, deselected=2)


def test_testmons_flag_is_understood_where_testmon_is_not_installed(write: Write, run_pytest: Run) -> None:
    write(PROJECT)
    run_pytest("--testmon").assert_outcomes(passed=3)
    assert _chosen(run_pytest("--testmon")) == (0, 3)


def test_a_failed_test_runs_again_until_it_passes(write: Write, run_pytest: Run) -> None:
    write({**PROJECT, "a.py": "def f(): return 0\n"})
    run_pytest("--affected").assert_outcomes(passed=1, failed=2)
    again = run_pytest("--affected-explain")
    again.assert_outcomes(failed=2, deselected=1)
    again.stdout.fnmatch_lines(["*run  tests/test_a.py::test_a: it failed last time"])
    write({"a.py": "def f(): return 1\n"})
    run_pytest("--affected").assert_outcomes(passed=2, deselected=1)
    assert _chosen(run_pytest("--affected")) == (0, 3)


def test_a_change_that_fails_and_is_taken_back_is_run_again(write: Write, run_pytest: Run) -> None:
    write(PROJECT)
    run_pytest("--affected")
    write({"a.py": "def f(): return -1\n"})
    run_pytest("--affected").assert_outcomes(failed=2, deselected=1)
    write({"a.py": PROJECT["a.py"]})
    run_pytest("--affected").assert_outcomes(passed=2, deselected=1)


def test_a_change_is_not_forgotten_by_a_run_that_was_stopped(write: Write, run_pytest: Run) -> None:
    write(PROJECT)
    run_pytest("--affected")
    write({"a.py": "def f(): return -1\n"})
    run_pytest("--affected", "-x").assert_outcomes(failed=1, deselected=1)
    # The second of the two never ran: the change is still news to it.
    run_pytest("--affected").assert_outcomes(failed=2, deselected=1)


def test_a_file_edited_while_the_tests_run_counts_as_changed(write: Write, run_pytest: Run) -> None:
    write(
        {
            **PROJECT,
            "tests/test_b.py": """
import b
from pathlib import Path

def test_b():
    path = Path(b.__file__)
    if "edited" not in path.read_text():
        import subprocess
        subprocess.run(["sh", "-c", "echo 'edited = 1' >> b.py"], check=True)
""",
        }
    )
    run_pytest("--affected").assert_outcomes(passed=3)
    # Nobody knows which content the test saw.
    assert _chosen(run_pytest("--affected")) == (1, 3)
    assert _chosen(run_pytest("--affected")) == (0, 3)


def test_a_file_that_a_test_writes_is_no_dependency(write: Write, run_pytest: Run) -> None:
    body = """
def test_out():
    with open("out.txt", "w") as file: file.write(__import__("uuid").uuid4().hex)
    assert open("out.txt").read()
"""
    write({**PROJECT, "tests/test_out.py": body})
    run_pytest("--affected")
    assert _chosen(run_pytest("--affected")) == (0, 4)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_file_that_a_test_only_touches_has_not_changed(
    write: Write, run_pytest: Run, workers: tuple[str, ...]
) -> None:
    """Bytes are compared, not times; the run that first reads a file has nothing to compare them with."""
    body = """
import os

def test_touch():
    assert open("data.txt").read() == "1"
    os.utime("data.txt")
    os.utime("b.py")
"""
    write({**PROJECT, "data.txt": "1", "tests/test_touch.py": body})
    run_pytest("--affected", *workers)
    assert _chosen(run_pytest("--affected", *workers))[0] > 0
    assert _chosen(run_pytest("--affected", *workers)) == (0, 4)
    write({"tests/test_touch.py": body + "    assert True\n"})
    assert _chosen(run_pytest("--affected", *workers)) == (1, 4)
    assert _chosen(run_pytest("--affected", *workers)) == (0, 4)
    write({"data.txt": "1\n"})
    assert _chosen(run_pytest("--affected", *workers)) == (1, 4)


def test_a_skipped_test_is_remembered_for_this_machine(write: Write, run_pytest: Run) -> None:
    write({"test_s.py": "import pytest\ndef test_s(): pytest.skip('no GPU')\n"})
    run_pytest("--affected").assert_outcomes(skipped=1)
    assert _chosen(run_pytest("--affected")) == (0, 1)


def test_a_blocked_test_is_not_remembered(
    write: Write, run_pytest: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        {
            "pyproject.toml": '[tool.seatrial.lanes.gated]\nneeds = {env = "HF_TOKEN"}\n',
            "test_g.py": "import pytest\n@pytest.mark.gated\ndef test_g(): pass\n",
        }
    )
    assert run_pytest("--affected", "--gated").ret == 3
    assert run_pytest("--affected", "--gated").ret == 3
    monkeypatch.setenv("HF_TOKEN", "secret")
    run_pytest("--affected", "--gated").assert_outcomes(passed=1)


def test_a_secret_is_not_written_down(write: Write, run_pytest: Run, pytester: pytest.Pytester) -> None:
    write({"test_e.py": "import os\ndef test_e(): assert os.environ['MY_TOKEN']\n"})
    os.environ["MY_TOKEN"] = "hf_verysecretvalue"
    try:
        run_pytest("--affected").assert_outcomes(passed=1)
    finally:
        del os.environ["MY_TOKEN"]
    text = (pytester.path / ".seatrial/affected.json").read_text()
    assert "MY_TOKEN" in text
    assert "verysecret" not in text


@pytest.mark.parametrize("damage", ["", "{", '{"schema": 99}', '{"schema": 1, "versions": 3}', "[]"])
def test_a_damaged_map_makes_everything_run(
    write: Write, run_pytest: Run, pytester: pytest.Pytester, damage: str
) -> None:
    write(PROJECT)
    run_pytest("--affected")
    (pytester.path / ".seatrial/affected.json").write_text(damage)
    run_pytest("--affected").assert_outcomes(passed=3)


def test_a_worker_that_dies_leaves_its_tests_to_run_again(write: Write, run_pytest: Run) -> None:
    write({**PROJECT, "tests/test_c.py": "import os\ndef test_dies(): os._exit(3)\n"})
    run_pytest("--affected", "-n", "1", "--max-worker-restart=1")
    write({"tests/test_c.py": "def test_dies(): pass\n"})
    outcome = run_pytest("--affected")
    assert "tests/test_c.py" in outcome.stdout.str()
    assert outcome.ret == 0
    assert _chosen(run_pytest("--affected")) == (0, 4)


def test_it_works_beside_coverage(write: Write, run_pytest: Run) -> None:
    pytest.importorskip("pytest_cov")
    write(PROJECT)
    for expected in ((3, 3), (0, 3)):
        outcome = run_pytest("--affected", "--cov=a", "--cov=b", plugins=("pytest_cov",))
        if expected == (3, 3):
            outcome.assert_outcomes(passed=3)
            outcome.stdout.fnmatch_lines(["TOTAL*100%*"])
        else:
            assert _chosen(outcome) == expected


def test_markers_and_lanes_compose(write: Write, run_pytest: Run) -> None:
    write(
        {
            **PROJECT,
            "pyproject.toml": PROJECT["pyproject.toml"] + "[tool.seatrial.lanes.slow]\n",
            "tests/test_s.py": "import a, pytest\n@pytest.mark.slow\ndef test_slow(): assert a.f()\n",
        }
    )
    run_pytest("--affected").assert_outcomes(passed=3, deselected=1)
    run_pytest("--affected", "--slow", "-m", "slow").assert_outcomes(passed=1, deselected=3)
    write({"a.py": "def f(): return 5\n"})
    run_pytest("--affected").assert_outcomes(passed=2, deselected=2)


def test_the_audit_runs_everything_and_finds_what_selection_would_miss(write: Write, run_pytest: Run) -> None:
    write(
        {
            **PROJECT,
            # The C library reads the file behind Python's back.
            "tests/test_hidden.py": """
import ctypes

def test_hidden():
    libc = ctypes.CDLL(None)
    libc.open.restype = ctypes.c_int
    descriptor = libc.open(b"hidden.txt", 0)
    buffer = ctypes.create_string_buffer(8)
    libc.read(descriptor, buffer, 8)
    libc.close(descriptor)
    assert buffer.value == b"good"
""",
            "hidden.txt": "good",
        }
    )
    run_pytest("--affected")
    write({"hidden.txt": "bad!", "a.py": "def f(): return -1\n"})
    outcome = run_pytest("--affected-audit")
    outcome.assert_outcomes(passed=1, failed=3)
    outcome.stdout.fnmatch_lines(
        [
            "affected: 2 of 4 tests would be chosen (all run, for the audit), 2 left out",
            "2 of 4 tests would have been chosen; the outcome of 3 changed, 1 of them would have been missed",
            "recall 66.7%",
            "missed: tests/test_hidden.py::test_hidden",
        ]
    )


def test_two_sessions_at_once_both_keep_what_they_learned(
    write: Write, run_pytest: Run, pytester: pytest.Pytester
) -> None:
    write({**PROJECT, "tests/test_b.py": "import b\ndef test_b(): open('go').read()\n"})
    os.mkfifo(pytester.path / "go")
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "seatrial.pytest_plugin", "--affected", "-q"]
    slow = subprocess.Popen([*command, "tests/test_b.py"], cwd=pytester.path, env=environment)
    with (pytester.path / "go").open("w"):  # opens when the first session's test waits for it
        subprocess.run([*command, "tests/test_a.py"], cwd=pytester.path, env=environment, check=True)
    assert slow.wait(timeout=120) == 0
    (pytester.path / "go").unlink()
    Path(pytester.path / "go").write_text("")
    assert _chosen(run_pytest("--affected", "tests/test_a.py")) == (0, 2)


@pytest.mark.parametrize("mark", ["depends_on(1)", "depends_on('x', files=['y'])"])
def test_a_wrong_declaration_is_refused(write: Write, run_pytest: Run, mark: str) -> None:
    write({"test_m.py": f"import pytest\n@pytest.mark.{mark}\ndef test_m(): pass\n"})
    outcome = run_pytest("--affected")
    assert outcome.ret != 0
    assert (
        "depends_on(*globs, env=(), modules=(), packages=())" in outcome.stdout.str() + outcome.stderr.str()
    )


@pytest.mark.parametrize(("left_out", "chosen"), [("", 1), ('plugins_left_out = ["own_plugin"]', 0)])
def test_a_plugin_of_the_project_counts_for_every_test_unless_it_is_left_out(
    left_out: str, chosen: int, write: Write, run_pytest: Run
) -> None:
    settings = f"[tool.seatrial.affected]\n{left_out}\n"
    write({"own_plugin.py": "X = 1\n", "pyproject.toml": settings, "test_it.py": "def test_it(): pass\n"})
    own = {"plugins": ("xdist", "own_plugin")}
    run_pytest("--affected", **own).assert_outcomes(passed=1)
    write({"own_plugin.py": "X = 2\n"})
    run_pytest("--affected", **own).assert_outcomes(passed=chosen)
