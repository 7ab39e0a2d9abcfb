"""The tracker keeps what the testing guide promises, and what the original lost."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

GUIDE_EXAMPLE = """
def test_exponentiate(tracker):
    starting_mem = tracker.get_max_mem()
    base = 2
    exponent = 4
    result = base ** exponent
    tracker.track("result", result)
    tracker.log_max_mem("memory_after_exponentiating")
    change_in_mem = tracker.get_max_mem() - starting_mem
    tracker.track("change_in_mem", change_in_mem)
    assert result == 16
"""
GUIDE_KEYS = ["exit_status", "git_commit", "start_time", "metrics", "gpu_types", "coverage"]
FILE = "tests/unit/test_it.py"

Write = Callable[[dict[str, str]], None]
Run = Callable[..., pytest.RunResult]
Results = Callable[..., dict[str, Any]]


def test_the_guides_example_runs_unchanged_and_gives_the_guides_form(
    write: Write, run_pytest: Run, results: Results
) -> None:
    write({"tests/unit/test_hf_ray_policy.py": GUIDE_EXAMPLE})
    run_pytest().assert_outcomes(passed=1)
    found = results()
    assert list(found)[: len(GUIDE_KEYS)] == GUIDE_KEYS
    assert found["exit_status"] == 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", found["start_time"])
    metrics = found["metrics"]["test_hf_ray_policy::test_exponentiate"]
    assert metrics["result"] == 16
    assert metrics["memory_after_exponentiating"] > 1_000_000
    assert metrics["_elapsed"] > 0


@pytest.mark.skipif(shutil.which("jq") is None, reason="the guide's command line needs jq; install it")
def test_the_guides_jq_line_reads_the_history_by_time_and_commit(
    write: Write, run_pytest: Run, pytester: pytest.Pytester
) -> None:
    write({"tests/unit/test_hf_ray_policy.py": GUIDE_EXAMPLE})
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "-q"], cwd=pytester.path, check=True)
    subprocess.run([*git, "add", "."], cwd=pytester.path, check=True)
    subprocess.run([*git, "commit", "-qm", "one"], cwd=pytester.path, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=pytester.path, check=True, capture_output=True, text=True
    ).stdout.strip()
    run_pytest()
    run_pytest()
    program = '[.start_time, .git_commit, .metrics["test_hf_ray_policy::test_exponentiate"].result] | @tsv'
    files = sorted(str(path) for path in (pytester.path / "tests/unit/unit_results").glob("*"))
    lines = subprocess.run(
        ["jq", "-r", program, *files], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert [line.split("\t")[1:] for line in lines] == [[head, "16"], [head, "16"]]


PARAMETRISED = """
import pytest

@pytest.mark.parametrize("n", [1, 2, 3])
def test_p(tracker, n):
    tracker.track("n", n)

class TestA:
    def test_same(self, tracker): tracker.track("of", "A")

class TestB:
    def test_same(self, tracker): tracker.track("of", "B")
"""


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_every_parameter_set_and_class_keeps_its_own_record(
    write: Write, run_pytest: Run, results: Results, arguments: tuple[str, ...]
) -> None:
    write({FILE: PARAMETRISED})
    run_pytest(*arguments).assert_outcomes(passed=5)
    found = results()
    metrics = found["metrics"]
    assert [metrics[f"test_it::test_p[{n}]"]["n"] for n in (1, 2, 3)] == [1, 2, 3]
    assert [metrics[f"test_it::Test{c}::test_same"]["of"] for c in "AB"] == ["A", "B"]
    record = found["tests"][f"{FILE}::test_p[2]"]
    assert record["params"] == {"n": 2}
    assert record["worker"] in ({"main"} if not arguments else {"gw0", "gw1"})
    assert record["device"]


def test_files_of_one_name_do_not_share_a_key(write: Write, run_pytest: Run, results: Results) -> None:
    body = "def test_it(tracker): tracker.track('where', __file__)\n"
    write({"a/test_x.py": body, "b/test_x.py": body})
    run_pytest("--import-mode=importlib").assert_outcomes(passed=2)
    metrics = results("unit_results.json")["metrics"]
    assert sorted(metrics) == ["a/test_x.py::test_it", "b/test_x.py::test_it"]


def test_nan_is_kept_visible_and_the_file_stays_json(write: Write, run_pytest: Run, results: Results) -> None:
    write(
        {
            FILE: """
def test_nan(tracker):
    tracker.track("loss", float("nan"))
    tracker.track("curve", [1.0, float("inf"), {"x": float("-inf")}])
    tracker.track("fine", 1.5)
"""
        }
    )
    outcome = run_pytest()
    outcome.stdout.fnmatch_lines(["*not finite: tests/unit/test_it.py::test_nan: loss"])
    found = results()
    metrics = found["metrics"]["test_it::test_nan"]
    assert metrics["loss"] == "NaN"
    assert metrics["curve"] == [1.0, "Infinity", {"x": "-Infinity"}]
    assert found["tests"][f"{FILE}::test_nan"]["not_finite"] == ["curve", "loss"]


UNSTORABLE = """
import pytest

cycle = []
cycle.append(cycle)

@pytest.mark.parametrize("value", [{1}, object(), {(1,): 2}, cycle, "\\ud800", 1 << 9999],
    ids=["set", "object", "key", "cycle", "surrogate", "huge"])
def test_bad(tracker, value):
    tracker.track("first", 1)
    tracker.track("metric", value)

def test_good(tracker):
    tracker.track("metric", 2)
"""


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_value_that_cannot_be_stored_fails_its_test_and_nothing_else(
    write: Write, run_pytest: Run, results: Results, arguments: tuple[str, ...]
) -> None:
    write({FILE: UNSTORABLE})
    outcome = run_pytest(*arguments)
    outcome.assert_outcomes(passed=1, failed=6)
    outcome.stdout.fnmatch_lines(["*metric 'metric' cannot be stored: set is no JSON value*"])
    found = results()
    assert found["metrics"]["test_it::test_good"]["metric"] == 2
    assert found["metrics"]["test_it::test_bad[set]"]["first"] == 1
    assert found["tests"][f"{FILE}::test_bad[set]"]["outcome"] == "failed"


def test_scalars_of_array_libraries_become_numbers(write: Write, run_pytest: Run, results: Results) -> None:
    write(
        {
            FILE: """
import numpy as np
def test_np(tracker):
    tracker.track("f", np.float32(0.5))
    tracker.track("i", np.int64(3))
    tracker.track("a", np.array(2.5))
"""
        }
    )
    run_pytest().assert_outcomes(passed=1)
    metrics = results()["metrics"]["test_it::test_np"]
    assert (metrics["f"], metrics["i"], metrics["a"]) == (0.5, 3, 2.5)


ARRAYS = """
import pytest
np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

def test_small(tracker):
    tracker.track("np", np.array([[1.5, float("nan")], [2, 3]]))
    tracker.track("torch", torch.tensor([1, 2], dtype=torch.int32))
    tracker.track("half", torch.ones(1, dtype=torch.bfloat16, requires_grad=True))

def test_large_np(tracker): tracker.track("big", np.zeros((100, 20)))
def test_large_torch(tracker): tracker.track("big", {"inner": torch.zeros(1001)})
def test_empty_of_values(tracker): tracker.track("meta", torch.zeros(2, device="meta"))
def test_objects(tracker): tracker.track("objects", np.array([object()]))
"""


def test_arrays_are_stored_or_refused_by_name(write: Write, run_pytest: Run, results: Results) -> None:
    write({FILE: ARRAYS})
    outcome = run_pytest()
    outcome.assert_outcomes(passed=1, failed=4)
    metrics = results()["metrics"]["test_it::test_small"]
    assert metrics["np"] == [[1.5, "NaN"], [2.0, 3.0]]
    assert (metrics["torch"], metrics["half"]) == ([1, 2], [1.0])
    for line in (
        "*metric 'big' cannot be stored: a numpy ndarray of shape (100, 20) has more than 1000 values; track numbers*",
        "*cannot be stored: a torch Tensor of shape (1001,) has more than 1000 values*",
        "*metric 'meta' cannot be stored: a torch Tensor of shape (2,) has no values to read*",
        "*cannot be stored: object is no JSON value*",
    ):
        outcome.stdout.fnmatch_lines([line.replace("[", "[[]")])


MEMORY = """
import subprocess, sys

MIB = 1 << 20

def test_own(tracker):
    before = tracker.get_max_mem("host")
    block = bytearray(200 * MIB)
    del block
    tracker.track("grown", tracker.get_max_mem("host") - before, unit="bytes", direction="lower")

def test_child(tracker):
    before = tracker.get_max_mem("host")
    subprocess.run([sys.executable, "-c", "x = bytearray(400 << 20)"], check=True)
    tracker.track("grown", tracker.get_max_mem("host") - before)
    tracker.log_max_mem("all")

def test_after(tracker):
    tracker.track("peak", tracker.get_max_mem("host"))
"""


def test_memory_is_the_real_peak_of_the_process_tree(write: Write, run_pytest: Run, results: Results) -> None:
    write({FILE: MEMORY})
    run_pytest().assert_outcomes(passed=3)
    found = results()
    mib = 1 << 20
    metrics = found["metrics"]
    # The block is freed before the tracker looks, and the child is gone: both peaks must still show.
    assert 190 * mib < metrics["test_it::test_own"]["grown"] < 260 * mib
    assert 390 * mib < metrics["test_it::test_child"]["grown"] < 500 * mib
    # The peak of one test is not the next one's.
    assert metrics["test_it::test_after"]["peak"] < 190 * mib
    record = found["tests"][f"{FILE}::test_child"]
    assert sum(record["memory"]["all"].values()) == metrics["test_it::test_child"]["all"]
    assert record["units"]["all"] == "bytes"
    assert found["tests"][f"{FILE}::test_own"]["directions"]["grown"] == "lower"


def test_ray_is_neither_imported_nor_started(write: Write, run_pytest: Run) -> None:
    write(
        {
            "ray.py": "raise SystemExit('ray was imported')\n",
            FILE: "def test_it(tracker): assert tracker.get_max_mem() > 0\n",
        }
    )
    run_pytest().assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("tracker.track('_elapsed', 1)", "must be text that does not begin with '_'"),
        ("tracker.track('x', 1, direction='up')", "must be 'lower' or 'higher'"),
        ("tracker.get_max_mem('gpu:99')", "no memory known for 'gpu:99'; known: "),
    ],
)
def test_wrong_calls_say_what_would_be_right(write: Write, run_pytest: Run, call: str, message: str) -> None:
    write({FILE: f"def test_it(tracker):\n    {call}\n"})
    outcome = run_pytest()
    outcome.assert_outcomes(failed=1)
    assert message in outcome.stdout.str()


def test_junit_keeps_the_metrics(write: Write, run_pytest: Run, pytester: pytest.Pytester) -> None:
    write({FILE: "def test_it(tracker): tracker.track('loss', 0.25, unit='nat')\n"})
    run_pytest("--junitxml=junit.xml", "-n", "1")
    text = (pytester.path / "junit.xml").read_text()
    assert '<property name="tracker:loss" value="0.25" />' in text
    record = re.search(r'name="seatrial.tracker" value="([^"]*)"', text)
    assert record is not None
    assert json.loads(record[1].replace("&quot;", '"'))["units"]["loss"] == "nat"


RERUN_PLUGIN = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    for attempt in (1, 2):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if any(report.failed for report in reports) and attempt == 1:
            for report in reports:
                report.outcome = "rerun"
            again = True
        else:
            again = False
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        if not again:
            return True
"""


def test_a_rerun_keeps_the_last_attempt_only(write: Write, run_pytest: Run, results: Results) -> None:
    write(
        {
            "rerunning.py": RERUN_PLUGIN,
            FILE: """
attempts = []
def test_flaky(tracker):
    attempts.append(1)
    tracker.track("attempt", len(attempts))
    if len(attempts) == 1:
        tracker.track("only_in_the_failed_one", True)
        raise RuntimeError("flaky")
""",
        }
    )
    run_pytest("-p", "rerunning", "-p", "no:xdist", plugins=())
    found = results()
    metrics = found["metrics"]["test_it::test_flaky"]
    assert metrics["attempt"] == 2
    assert "only_in_the_failed_one" not in metrics
    record = found["tests"][f"{FILE}::test_flaky"]
    assert (record["outcome"], record["attempt"]) == ("passed", 2)
