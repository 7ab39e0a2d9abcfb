"""FP11-FP16: expressions that fooled a gate, or that no run could fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.false_passes.corpus import Row, by_id

from seatrial.checks import FindingKind, clip_ranges, evaluate_check, lint_check, parse_check
from seatrial.cli import main
from seatrial.errors import UsageError
from seatrial.evidence.runlog import RunLog, Series
from seatrial.verdict import EXIT_USAGE, Outcome


def log_of(**tags: list[float]) -> RunLog:
    """Return a log with steps from 1; double underscores stand for slashes."""
    series = {}
    for name, values in tags.items():
        tag = name.replace("__", "/")
        series[tag] = Series(
            tag=tag, steps=np.arange(1, len(values) + 1), values=np.array(values, dtype=float)
        )
    return RunLog(sources=["by hand"], series=series)


@pytest.mark.parametrize("row", by_id("FP11"), ids=str)
@pytest.mark.parametrize(
    "text",
    ['max(data["x"]) < 1 or True', 'True or max(data["x"]) < 1', 'not False and max(data["x"]) < 1', "1 < 2"],
)
def test_a_constant_operand_is_refused(row: Row, text: str) -> None:
    with pytest.raises(UsageError, match="constant"):
        parse_check(text)


@pytest.mark.parametrize("row", by_id("FP12"), ids=str)
@pytest.mark.parametrize(
    "template",
    [
        "exit(0)",
        'max(data["x"]) < 9 or exit(0)',
        "__import__('os').system('touch {marker}') == 0",
        "open('{marker}', 'w').write('x') > 0",
        "[open('{marker}', 'w') for _ in data] == data",
    ],
)
def test_code_is_refused_and_nothing_runs(row: Row, template: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps({"x": {"1": 0.5}}))
    marker = tmp_path / "marker"
    words = ["check", str(tmp_path / "metrics.json"), 'max(data["x"]) < 9', template.format(marker=marker)]
    ran = subprocess.run(
        [sys.executable, "-m", "seatrial", *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == EXIT_USAGE, row.right
    assert not marker.exists()
    assert "Pass" not in ran.stdout and "Traceback" not in ran.stderr


@pytest.mark.parametrize("row", by_id("FP13"), ids=str)
@pytest.mark.parametrize(
    "text", ['max(data["x"])', 'data["x"]', 'data["x"]["1"]', 'not max(data["x"])', 'max(data["x"]) and 1']
)
def test_what_is_no_comparison_is_refused(row: Row, text: str) -> None:
    with pytest.raises(UsageError, match=r"not a comparison|constant"):
        parse_check(text)


@pytest.mark.parametrize("row", by_id("FP14"), ids=str)
@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ('1 < max(data["x"]) < 2', "> 1 and < 2"),
        ('max(data["x"]) != 5', "!= 5"),
        ('(max(data["x"]) < (2))', "< 2"),
        ('1 <= max(data["x"]) <= 2', ">= 1 and <= 2"),
        ('5 >= max(data["x"])', "<= 5"),
        ('not (max(data["x"]) > 2)', "not > 2"),
    ],
)
def test_the_measured_value_is_shown(row: Row, text: str, bound: str) -> None:
    verdict = evaluate_check(parse_check(text), log_of(x=[0.5, 1.5]))
    assert (verdict.outcome, verdict.value, verdict.bound) == (Outcome.PASS, 1.5, bound), row.right


@pytest.mark.parametrize("row", by_id("FP14"), ids=str)
def test_brackets_in_a_tag_are_shown_and_not_read_as_markup(
    row: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps({"[bold]x[/bold]": {"1": 0.5}, "[/a]": {"1": 0.5}}))
    assert (
        main(
            [
                "check",
                str(tmp_path / "metrics.json"),
                'max(data["[bold]x[/bold]"]) < 1',
                'max(data["[/a]"]) < 1',
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert 'max(data["[bold]x[/bold]"]) < 1' in shown and 'max(data["[/a]"]) < 1' in shown


@pytest.mark.parametrize("row", by_id("FP15"), ids=str)
def test_a_mistyped_tag_is_found_before_the_run(row: Row) -> None:
    check = parse_check('max(data["train/rewrad"]) > 0')
    findings = lint_check(check, known_tags=["train/reward", "train/loss", "timing/*"])
    [finding] = [item for item in findings if item.kind is FindingKind.UNKNOWN_TAG]
    assert "train/reward" in finding.message, row.right
    known = lint_check(parse_check('max(data["timing/train/generation"]) < 9'), known_tags=["timing/*"])
    assert known == []


@pytest.mark.parametrize("row", by_id("FP15"), ids=str)
def test_a_mistyped_tag_fails_after_the_run_with_the_nearest_names(row: Row) -> None:
    verdict = evaluate_check(
        parse_check('max(data["train/rewrad"]) > 0'), log_of(train__reward=[1.0], train__loss=[1.0])
    )
    assert verdict.outcome is Outcome.FAIL
    assert "train/reward" in verdict.reason, row.right


@pytest.mark.parametrize("row", by_id("FP16"), ids=str)
@pytest.mark.parametrize(
    "text",
    [
        'min(data["train/probs_ratio_clamped_min"]) > 0.79',
        'max(data["train/probs_ratio_clamped_max"]) < 1.21',
        'max(data["train/probs_ratio_clamped_min"]) <= 1.2',
        'data["train/probs_ratio_clamped_max"]["1"] > 0',
    ],
)
def test_a_bound_outside_the_clip_cannot_fail(row: Row, text: str) -> None:
    check = parse_check(text)
    assert [finding.kind for finding in lint_check(check, ranges=clip_ranges(0.2, 0.2))] == [
        FindingKind.CANNOT_FAIL
    ]
    log = log_of(train__probs_ratio_clamped_min=[0.8, 0.9], train__probs_ratio_clamped_max=[1.1, 1.2])
    verdict = evaluate_check(check, log)
    assert verdict.outcome is Outcome.SKIPPED, row.right
    assert "cannot fail" in verdict.reason


@pytest.mark.parametrize("row", by_id("FP16"), ids=str)
def test_a_bound_inside_the_clip_can_fail(row: Row) -> None:
    check = parse_check('max(data["train/probs_ratio_clamped_max"]) < 1.21')
    assert lint_check(check, ranges=clip_ranges(0.2, 0.28)) == [], row.evidence
    tight = parse_check('min(data["train/probs_ratio_clamped_min"]) > 0.9')
    assert lint_check(tight, ranges=clip_ranges(0.2, 0.2)) == []
