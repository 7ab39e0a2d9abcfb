"""Suites: what is read, what is refused with one message, and what is judged."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from seatrial.checks import FindingKind, lint_check
from seatrial.checks.suites import evaluate_suite, load_suite, read_suite
from seatrial.errors import UsageError
from seatrial.evidence.runlog import RunLog
from seatrial.packaged import FOLDERS, find_file
from seatrial.strict_yaml import MAX_BYTES
from seatrial.verdict import Outcome

MakeLog = Callable[..., RunLog]
SHIPPED = sorted(FOLDERS["suite"].glob("*.yaml"))

WHOLE = """
name: grpo-math
level: 0
description: a suite with everything
allow_nonfinite: [train/stddev]
ranges: {train/share: [0, 1]}
checks:
  - expression: max(data["train/loss"]) < 2
    why: the loss stays small
    source: learned from 8 repeats
  - expression: max(data["train/reward"]) < 0.5
    why: only to look at
    severity: warning
  - expression: max(data["train/stddev"]) < 2
    why: spread
  - expression: data["train/share"]["1"] <= 1
    why: a share
  - expression: max(data["train/gap"]) < 2
    why: gaps are legitimate here
    allow_nonfinite: [train/gap]
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    return path


def test_each_check_is_judged_with_its_source_severity_and_permissions(
    make_log: MakeLog, tmp_path: Path
) -> None:
    nan = math.nan
    log = make_log(
        {
            "train/loss": {1: 1.0, 2: 1.5},
            "train/reward": {1: 0.9},
            "train/stddev": {1: nan, 2: 1.0},
            "train/share": {1: 0.5},
            "train/gap": {1: 1.0, 2: nan},
        }
    )
    verdicts = evaluate_suite(load_suite(written(tmp_path, WHOLE)), log)
    assert [verdict.outcome for verdict in verdicts] == [
        Outcome.PASS,
        Outcome.SKIPPED,
        Outcome.PASS,
        Outcome.SKIPPED,
        Outcome.PASS,
    ]
    loss, reward, stddev, share, gap = verdicts
    assert loss.source == "learned from 8 repeats" and loss.details["why"] == "the loss stays small"
    assert "warning only" in reward.reason and "0.9" in reward.reason
    assert stddev.details["allowed_nonfinite"] == {"train/stddev": [1]}
    assert "cannot fail" in share.reason
    assert gap.num_samples == 1


def test_a_warning_that_is_blocked_stays_blocked(make_log: MakeLog) -> None:
    suite = read_suite(
        {"name": "s", "checks": [{"expression": 'max(data["x"]) < 2', "why": "w", "severity": "warning"}]},
        "s",
    )
    [verdict] = evaluate_suite(suite, make_log({"x": {1: 1.0}}, damage=["cut"]))
    assert verdict.outcome is Outcome.BLOCKED


ONE = "name: s\nchecks:\n  - {expression: 'max(data[\"x\"]) < 2', why: w"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds NoneType, not a mapping"),
        ("- a", "holds list, not a mapping"),
        ("name: s", "checks: is missing"),
        ("name: s\nchecks: []", "checks:"),
        ("name: ''\nchecks:\n  - {expression: 'max(data[\"x\"]) < 2', why: w}", "name:"),
        (f"{ONE}, sevrity: error}}", "checks.0.sevrity: unknown key; did you mean 'severity'?"),
        (f"{ONE}, severity: fatal}}", "checks.0.severity: Input should be 'error' or 'warning'"),
        (f"{ONE}, source: 3}}", "checks.0.source"),
        (f"{ONE}}}\nlevl: 3", "levl: unknown key; did you mean 'level'?"),
        (f"{ONE}}}\nlevel: 7", "level:"),
        (f"{ONE}}}\nlevel: '1'", "level:"),
        (f"{ONE}}}\nranges: {{x: [2, 1]}}", "ranges.x: 2.0 is not below 1.0"),
        (f"{ONE}}}\nranges: {{x: [.nan, 1]}}", "ranges.x"),
        ("name: s\nchecks:\n  - {expression: 'max(data[\"x\"]) < 2'}", "checks.0.why: is missing"),
        (
            "name: s\nchecks:\n  - {expression: 'exit(0)', why: w}",
            "checks.0.expression: check refused at column 1",
        ),
        (f"{ONE}}}\nname: again", "'name' is given twice"),
        ("name: &a s\ndescription: *a\nchecks: []", "aliases"),
        ("name: [", "not YAML"),
        ("name: !!python/object/apply:os.getcwd []", "not YAML"),
        ("? [a, b]\n: 1", "not YAML"),
        ("[" * 5000, "not YAML"),
    ],
    ids=lambda value: value[:30],
)
def test_faults_are_one_message_that_names_the_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_suite(written(tmp_path, text))
    message = str(refused.value)
    assert message.startswith(f"suite {tmp_path / 'suite.yaml'}: ")
    assert says in message


def test_many_faults_are_told_at_once_and_the_rest_counted() -> None:
    with pytest.raises(UsageError, match="and 4 more"):
        read_suite({"name": "s", "checks": [{"wrong": 1}] * 3}, "s")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_suite(tmp_path / "missing.yaml")
    with pytest.raises(UsageError, match="Is a directory"):
        load_suite(tmp_path)
    with pytest.raises(UsageError, match="at most"):
        load_suite(written(tmp_path, "#" * (MAX_BYTES + 1)))
    (tmp_path / "suite.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not YAML"):
        load_suite(tmp_path / "suite.yaml")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_suites_that_are_shipped_are_sound(path: Path) -> None:
    suite = load_suite(path)
    assert suite.name == path.stem
    for item in suite.checks:
        faults = [
            finding for finding in lint_check(item.read()) if finding.kind is not FindingKind.ONE_STEP_DECIDES
        ]
        assert faults == [], item.expression


def test_there_are_suites_that_are_shipped() -> None:
    assert SHIPPED


def test_a_suite_is_named_or_given_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of that name in the folder is meant first; a name that there is not is one message with the nearest."""
    monkeypatch.chdir(tmp_path)
    assert find_file("suite", Path("learning")) == FOLDERS["suite"] / "learning.yaml"
    assert find_file("suite", Path("own/learning")) == Path("own/learning")
    assert find_file("suite", Path("learning.yaml")) == Path("learning.yaml")
    Path("learning").touch()
    assert find_file("suite", Path("learning")) == Path("learning")
    with pytest.raises(UsageError, match=r"there is no suite and no file 'golde'; did you mean 'golden'\?"):
        find_file("suite", Path("golde"))
