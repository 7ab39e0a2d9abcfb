"""`seatrial check` from the command line: output, JSON, exit codes."""

from __future__ import annotations

import json
import math
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from seatrial.cli import main
from seatrial.verdict import EXIT_BLOCKED, EXIT_FAIL, EXIT_NOTHING_RAN, EXIT_PASS, EXIT_USAGE


@pytest.fixture
def logs(tmp_path: Path) -> str:
    path = tmp_path / "metrics.json"
    path.write_text(
        json.dumps(
            {
                "train/loss": {"1": 1.0, "2": 0.5, "3": 0.25},
                "train/bad": {"1": 1.0, "2": math.nan},
                "train/probs_ratio_clamped_min": {"1": 0.9},
                "score": 0.3,
            }
        )
    )
    return str(path)


@pytest.mark.parametrize(
    ("expressions", "code"),
    [
        (['max(data["train/loss"]) < 2'], EXIT_PASS),
        (['max(data["train/loss"]) < 2', 'data["score"] > 0.2'], EXIT_PASS),
        (['max(data["train/loss"]) < 2', 'data["score"] > 0.4'], EXIT_FAIL),
        (['max(data["train/bad"]) < 2'], EXIT_FAIL),
        (['max(data["train/los"]) < 2'], EXIT_FAIL),
        (['min(data["train/probs_ratio_clamped_min"]) > 0.79'], EXIT_NOTHING_RAN),
        (['min(data["train/probs_ratio_clamped_min"]) > 0.79', 'data["score"] > 0.2'], EXIT_PASS),
        ([], EXIT_USAGE),
        (['max(data["train/loss"])'], EXIT_USAGE),
        (['max(data["train/loss"]) < 2', "exit(0)"], EXIT_USAGE),
        (['max(run("old")["train/loss"]) < 2'], EXIT_USAGE),
        (['-1 < max(data["train/loss"])'], EXIT_PASS),
        (["--", '-max(data["train/loss"])<1'], EXIT_PASS),
    ],
)
def test_exit_codes_follow_the_algebra(logs: str, expressions: list[str], code: int) -> None:
    assert main(["check", logs, *expressions]) == code


@pytest.mark.parametrize(
    "content", [None, "", "garbage", "{}"], ids=["missing", "empty", "garbage", "no metrics"]
)
def test_a_log_that_cannot_be_read_blocks_every_check(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    if content is not None:
        path.write_text(content)
    report = tmp_path / "out.json"
    words = ["check", str(path), 'max(data["a"]) < 2', 'max(data["b"]) < 2', "--json", str(report)]
    assert main(words) == EXIT_BLOCKED
    assert capsys.readouterr().out.count("Blocked ") == 2
    assert [item["outcome"] for item in json.loads(report.read_text())["verdicts"]] == ["Blocked", "Blocked"]


def test_plain_output_shows_value_bound_samples_and_steps(
    logs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", logs, 'max(data["train/loss"]) < 2', 'max(data["train/bad"]) < 2'])
    assert capsys.readouterr().out.splitlines() == [
        'Pass    max(data["train/loss"]) < 2',
        "        value 1, bound < 2, samples 3, steps 1-3, threshold hand-set",
        '        max(data["train/loss"]) is 1, which is < 2',
        'Fail    max(data["train/bad"]) < 2',
        "        value -, bound < 2, samples 2, steps 1-2, threshold hand-set",
        '        data["train/bad"] is NaN at step 2',
        "Fail: 2 checks: 1 Pass, 1 Fail",
    ]


def test_json_holds_every_verdict(logs: str, tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    main(["check", logs, 'max(data["train/loss"]) < 2', 'max(data["train/bad"]) < 2', "--json", str(report)])
    document = json.loads(report.read_text())
    assert document["schema_version"] == 1 and document["outcome"] == "Fail"
    passed, failed = document["verdicts"]
    assert (passed["value"], passed["bound"], passed["num_samples"], passed["steps"]) == (
        1.0,
        "< 2",
        3,
        [1, 3],
    )
    assert failed["value"] is None and "step 2" in failed["reason"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_json_that_cannot_be_written_is_blocked(logs: str, tmp_path: Path) -> None:
    assert (
        main(["check", logs, 'data["score"] > 0', "--json", str(tmp_path / "no/such/out.json")])
        == EXIT_BLOCKED
    )


def test_suites_and_other_runs(logs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "name: s\nchecks:\n"
        '  - {expression: \'max(abs(data["train/loss"] - run("old")["train/loss"])) < 0.1\', why: same}\n'
        "  - {expression: 'max(data[\"train/bad\"]) < 2', why: may be NaN, allow_nonfinite: [train/bad]}\n"
    )
    words = ["check", logs, "--suite", str(suite), "--run", f"old={logs}"]
    assert main(words) == EXIT_PASS
    assert "allowed and left out: 1 steps" in capsys.readouterr().out
    assert main([*words[:4], "--run", f"old={tmp_path / 'missing'}"]) == EXIT_BLOCKED


def test_permission_for_nonfinite_values_is_by_name(logs: str) -> None:
    assert main(["check", logs, 'max(data["train/bad"]) < 2', "--allow-nonfinite", "train/bad"]) == EXIT_PASS
    assert main(["check", logs, 'max(data["train/bad"]) < 2', "--allow-nonfinite", "train/loss"]) == EXIT_FAIL


@pytest.mark.parametrize(
    "option",
    [
        ["--run", "old"],
        ["--run", "=x"],
        ["--run", "a=x", "--run", "a=y"],
        ["--range", "x"],
        ["--range", "x=1"],
        ["--range", "x=2:1"],
        ["--suite", "missing.yaml"],
        ["--max-num-steps", "3"],
        ["--lint", "--json", "out.json"],
        ["--lint", "--run", "old=x"],
        ["--lint", "--allow-nonfinite", "x"],
    ],
    ids=" ".join,
)
def test_wrong_options_are_wrong_usage(logs: str, option: list[str]) -> None:
    assert main(["check", logs, 'data["score"] > 0', *option]) == EXIT_USAGE


def test_strict_refuses_a_check_that_cannot_fail(logs: str) -> None:
    check = 'min(data["train/probs_ratio_clamped_min"]) > 0.79'
    assert main(["check", logs, check, "--strict"]) == EXIT_USAGE
    wider = ["--range", "train/probs_ratio_clamped_min=0.7:1.2"]
    assert main(["check", logs, check, "--strict", *wider]) == EXIT_PASS


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (['max(data["train/loss"]) < 2'], EXIT_PASS, "sound"),
        (['max(data["train/loss"]) > 2'], EXIT_PASS, "one step decides"),
        (['abs(data["x"]["1"]) >= 0'], EXIT_FAIL, "cannot fail"),
        (['data["x"]["9"] < 1', "--max-num-steps", "5"], EXIT_FAIL, "step out of reach"),
        (["LOGS", 'max(data["train/los"]) < 2'], EXIT_FAIL, "train/loss"),
        (["LOGS", 'max(data["train/loss"]) < 2'], EXIT_PASS, "sound"),
        (["LOGS"], EXIT_USAGE, "nothing to lint"),
        (['abs(data["x"]["1"]) >= 0', "--strict"], EXIT_USAGE, "cannot fail"),
    ],
)
def test_lint_needs_no_run(
    logs: str, words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--lint", *[logs if word == "LOGS" else word for word in words]]) == code
    told = capsys.readouterr()
    assert says in told.out + told.err


def test_the_vocabulary_tells_what_cannot_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TRL's names are recognised, and its entropy is never negative."""
    trl = [
        "entropy",
        "reward_std",
        "frac_reward_zero_std",
        "completions/mean_length",
        "clip_ratio/region_mean",
    ]
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({f"train/{name}": {"1": 0.5, "2": 0.5} for name in trl}))
    assert main(["check", str(path), 'min(data["train/entropy"]) >= 0']) == EXIT_NOTHING_RAN
    assert "is at least 0" in capsys.readouterr().out
    assert main(["check", str(path), 'min(data["train/entropy"]) > 0.1']) == EXIT_PASS


def on_a_terminal(columns: int, words: list[str]) -> str:
    """Run the command with a terminal of some width and return what it shows."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (40, columns))
    with subprocess.Popen(
        [sys.executable, "-m", "seatrial", "check", *words],
        stdout=follower,
        stderr=follower,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": str(columns), "TERM": "dumb"},
    ) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # Linux ends a terminal whose other side is closed with an error.
                break
            if not part:
                break
            shown += part
        process.wait(timeout=60)
    os.close(leader)
    return shown.decode()


def test_a_wide_terminal_shows_a_table_and_a_narrow_one_plain_lines(logs: str) -> None:
    words = [logs, 'max(data["train/loss"]) < 2', 'max(data["[/b]"]) < 2']
    wide = on_a_terminal(160, words)
    for heading in ("Status", "Check", "Value", "Bound", "Steps", "Samples", "Reason"):
        assert heading in wide
    assert 'max(data["[/b]"]) < 2' in wide
    narrow = on_a_terminal(60, words)
    assert "Reason" not in narrow and 'Pass    max(data["train/loss"]) < 2' in narrow


def test_control_characters_of_a_log_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({"train/\x1b[31mlos": {"1": 1.0}}))
    main(["check", str(path), 'max(data["train/loss"]) < 2'])
    assert "\x1b" not in capsys.readouterr().out
