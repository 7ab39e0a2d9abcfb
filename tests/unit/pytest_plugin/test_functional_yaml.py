"""A functional test is ten lines of YAML, and appears as a pytest item with its metric table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Write = Callable[[dict[str, str]], None]
Run = Callable[..., pytest.RunResult]
Results = Callable[..., dict[str, Any]]

TRAINER = """
import json, os, sys
settings = dict(word.split("=", 1) for word in sys.argv[1:])
steps, path = int(settings["steps"]), settings["out"]
os.makedirs(path, exist_ok=True)
data = {"train/loss": {str(s): float(settings.get("loss", 900)) - s for s in range(1, steps + 1)}}
if "nan" in settings:
    data["train/loss"]["1"] = float("nan")
with open(os.path.join(path, "metrics.json"), "w") as file:
    file.write(settings.get("raw") or json.dumps(data))
print("token", os.environ.get("MY_API_KEY"))
sys.exit(int(settings.get("status", "0")))
"""
SPEC = """
command: python train.py
overrides:
  - steps={steps}
  - out={dir}/logs
  - %s
steps: 9
checks:
  - data["train/loss"]["9"] < 1500
  - max(data["train/loss"]) < 1000
"""


def _project(override: str = "loss=826", spec: str = SPEC) -> dict[str, str]:
    text = spec % override if "%s" in spec else spec
    return {"train.py": TRAINER, "tests/functional/sft.functional.yaml": text}


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_a_passing_run_shows_the_guides_table(
    write: Write, run_pytest: Run, pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    write(_project())
    outcome = run_pytest("--functional-dir=runs", *workers)
    outcome.assert_outcomes(passed=1)
    outcome.stdout.fnmatch_lines(
        [
            "tests/functional/sft.functional.yaml::sft: passed",
            "*Metric Checks*",
            "┃ Status ┃ Check *┃ Value *┃ Message *┃",
            "│ PASS   │ steps *│ 9.0 *",
            '│ PASS   │ data?"train/loss"??"9"? < 1500 *│ 817.0 *',
        ]
    )
    (run_log,) = (pytester.path / "runs").rglob("run.log")
    assert "token" in run_log.read_text()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("loss=5000", '*Fail: data?"train/loss"??"9"? < 1500: *4991*'),
        ("nan=1", '*Fail: max(data?"train/loss"?) < 1000: *'),
        ("status=7", "*Fail: command: exit status 7"),
        ("steps=4", "*Fail: steps: the run logged step 4"),
        ("out=/dev/null/x", "*Fail: command: exit status 1"),
    ],
)
def test_a_failing_run_fails_with_the_command_and_the_reason(
    write: Write, run_pytest: Run, override: str, message: str
) -> None:
    write(_project(override))
    outcome = run_pytest()
    assert outcome.ret == 1
    outcome.assert_outcomes(failed=1)
    outcome.stdout.fnmatch_lines(["+ *train.py steps=9 *", "*everything is in *", message])
    assert "Traceback (most" not in outcome.stdout.str().partition("last lines of")[0]


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_the_short_summary_names_the_failed_check(
    write: Write, run_pytest: Run, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    write(_project("loss=5000"))
    outcome = run_pytest(*workers)
    item = "FAILED tests/functional/sft.functional.yaml::sft"
    outcome.stdout.fnmatch_lines(
        [f'{item} - data?"train/loss"??"9"? < 1500: data*is 4991, not < 1500; max(*']
    )


def test_a_run_without_logs_fails_though_it_ended_with_0(write: Write, run_pytest: Run) -> None:
    write(_project(spec='command: python -c "pass"\nchecks: [\'max(data["x"]) < 1\']\n'))
    outcome = run_pytest()
    outcome.assert_outcomes(failed=1)
    outcome.stdout.fnmatch_lines(["*Fail: logs: the command ended with 0 and left no log at *"])


@pytest.mark.parametrize(
    ("override", "spec"),
    [
        ("raw={", SPEC),
        ("", "command: no-such-program-here\nchecks: ['max(data[\"x\"]) < 1']\n"),
    ],
    ids=["unreadable logs", "no such program"],
)
def test_what_the_environment_withheld_is_blocked(
    write: Write, run_pytest: Run, results: Results, override: str, spec: str
) -> None:
    write(_project(override, spec))
    outcome = run_pytest("--tracker-results=r.json")
    assert outcome.ret == 3
    outcome.stdout.fnmatch_lines(["*= Blocked =*", "*sft.functional.yaml::sft: *"])
    (record,) = results("r.json")["tests"].values()
    assert record["outcome"] == "blocked"


def test_the_time_limit_ends_the_run(write: Write, run_pytest: Run) -> None:
    spec = (
        'command: python -c "import signal; signal.pause()"\ntimeout: 1\nchecks: [\'max(data["x"]) < 1\']\n'
    )
    write(_project(spec=spec))
    outcome = run_pytest()
    outcome.assert_outcomes(failed=1)
    outcome.stdout.fnmatch_lines(["*Fail: command: stopped by the time limit after 1 s"])


def test_verdicts_are_in_the_result_file(write: Write, run_pytest: Run, results: Results) -> None:
    write(_project())
    run_pytest("--tracker-results=r.json")
    (record,) = results("r.json")["tests"].values()
    assert [(v["outcome"], v["num_samples"] > 0) for v in record["verdicts"]] == [("Pass", True)] * 3


def test_a_second_run_judges_its_own_logs(write: Write, run_pytest: Run) -> None:
    write(_project())
    run_pytest("--functional-dir=runs").assert_outcomes(passed=1)
    write(_project(spec='command: python -c "pass"\nchecks: [\'max(data["train/loss"]) < 1000\']\n'))
    run_pytest("--functional-dir=runs").assert_outcomes(failed=1)


def test_secrets_do_not_reach_the_log(
    write: Write, run_pytest: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-very-secret-value")
    write(_project())
    run_pytest("--functional-dir=runs")
    assert not [
        p for p in (pytester.path / "runs").rglob("*") if p.is_file() and "very-secret" in p.read_text()
    ]


def test_markers_and_lanes_apply(write: Write, run_pytest: Run) -> None:
    write(
        {
            **_project(spec=SPEC % "loss=1" + "markers: [gpu_lane]\n"),
            "pyproject.toml": "[tool.seatrial.lanes.gpu_lane]\n",
        }
    )
    run_pytest().assert_outcomes(deselected=1)
    run_pytest("--gpu-lane").assert_outcomes(passed=1)


def test_affected_knows_what_the_command_used(write: Write, run_pytest: Run) -> None:
    write({**_project(), "other.py": "X = 1\n"})
    run_pytest("--affected").assert_outcomes(passed=1)
    write({"other.py": "X = 2\n"})
    run_pytest("--affected").assert_outcomes(deselected=1)
    write({"train.py": TRAINER + "X = 1\n"})
    run_pytest("--affected").assert_outcomes(passed=1)
    write(_project("loss=825"))
    run_pytest("--affected").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("- a\n", "*a functional test is a table of keys, not list*"),
        ("command: x\n", "*key 'checks' is missing or empty*"),
        ("checks: ['x']\n", "*key 'command' is missing or empty*"),
        ("command: x\nchecks: []\n", "*key 'checks' is missing or empty*"),
        ("command: x\nchecks: ['max(']\n", "*sft.functional.yaml: *column*"),
        ("command: x\nchecks: ['1 < 2']\nstep: 3\n", "*key 'step' is unknown; known: *steps*"),
        (
            "command: x\nchecks: ['1 < 2']\nsteps: none\n",
            "*steps must be a number of steps from 1, not 'none'*",
        ),
        ("command: {a: 1}\nchecks: ['1 < 2']\n", "*command must be a text or a list of texts*"),
        ("a: [\n", "*sft.functional.yaml: *"),
        ("command: x\ncommand: y\nchecks: ['1 < 2']\n", "*the key 'command' is given twice*"),
    ],
)
def test_a_wrong_file_is_found_before_anything_runs(
    write: Write, run_pytest: Run, spec: str, message: str
) -> None:
    write(_project(spec=spec))
    outcome = run_pytest()
    assert outcome.ret == 2
    outcome.stdout.fnmatch_lines([message])
