"""`seatrial trend`: many results in, one line per value out."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from seatrial.cli import main
from seatrial.report.history import read_history
from seatrial.report.svg import Line, line_chart
from seatrial.report.trend import sparkline, trends
from seatrial.trials.results import Results, TrialResult, TrialState
from seatrial.verdict import Outcome, Verdict

START = datetime(2026, 3, 1, 12, 0, 0)


def write_run(folder: Path, number: int, value: float, outcome: Outcome = Outcome.PASS) -> None:
    verdict = Verdict(name="reward <b>|x", outcome=outcome, reason="measured", value=value, num_samples=3)
    trial = TrialResult(
        name="learning-signal",
        level=6,
        summary="s",
        proves="p",
        does_not_prove="d",
        state=TrialState.CONCLUDED,
        verdicts=[verdict],
    )
    results = Results(
        run=f"run-{number}",
        target="reference",
        requested="level 6",
        seed=0,
        timeout_seconds=1,
        started_at=(START + timedelta(days=number)).isoformat() + "+00:00",
        seatrial_version="0",
        repositories={"seatrial": f"commit {number:012d}, clean"},
        trials=[trial],
    )
    path = folder / f"run-{number}"
    path.mkdir(parents=True)
    (path / "results.json").write_text(results.to_text())


def write_tests(folder: Path, number: int, value: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "exit_status": 0,
        "git_commit": f"{number:040x}",
        "start_time": str(START + timedelta(days=number)),
        "metrics": {"test_policy::test_generation": {"avg_prob_mult_error": value, "note": "text"}},
        "gpu_types": [],
        "coverage": None,
    }
    (folder / f"2026_{number:02d}.json").write_text(json.dumps(content))


def test_run_directories_are_shown_by_date_with_the_change_of_level(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in reversed(range(12)):
        write_run(tmp_path, number, 0.9 if number < 6 else 0.4, Outcome.PASS if number < 6 else Outcome.FAIL)
    assert main(["trend", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "12 runs, 1 values" in out
    assert "██████▁▁▁▁▁▁" in out
    assert "6 Pass, 6 Fail" in out
    assert "learning-signal: reward <b>|x: 000000000 (2026-03-07): 0.9 -> 0.4" in out


def test_the_plugins_files_are_read_and_nan_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, value in enumerate([1.0, 1.5, "NaN", 2.0]):
        write_tests(tmp_path / "unit_results", number, value)
    assert main(["trend", str(tmp_path / "unit_results")]) == 0
    out = capsys.readouterr().out
    assert "test_policy::test_generation::avg_prob_mult_error" in out
    assert "▁▅x█" in out
    assert "no change of level" in out


def test_the_pytest_plugins_own_file_is_read(tmp_path: Path) -> None:
    """The form is the plugin's, whatever fields it adds."""
    from seatrial.pytest_plugin.results import build

    content = build(
        [], exit_status=0, start_time=START, root=tmp_path, collected=0, deselected={}, coverage=None, note=""
    )
    content["metrics"] = {"test_a::test_b": {"x": 3}}
    (tmp_path / "unit_results.json").write_text(json.dumps(content))
    assert read_history([tmp_path / "unit_results.json"]).points[0].values == {"test_a::test_b::x": 3.0}


def test_the_page_and_the_charts_are_well_formed(tmp_path: Path) -> None:
    for number in range(9):
        write_run(tmp_path / "runs", number, float(number))
    assert main(["trend", str(tmp_path / "runs"), "--output", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out/trend.md").read_text()
    row = next(line for line in page.splitlines() if "reward" in line)
    assert "reward &lt;b&gt;\\|x" in row
    assert "(trend-001.svg)" in page
    root = ET.fromstring((tmp_path / "out/trend-001.svg").read_text())
    assert root.find("{http://www.w3.org/2000/svg}title").text == "learning-signal: reward <b>|x"  # type: ignore[union-attr]
    dots = [item for item in root.iter("{http://www.w3.org/2000/svg}circle") if item.get("r") == "2.5"]
    heights = [float(item.get("cy", "nan")) for item in dots]
    assert len(dots) == 9
    assert heights == sorted(heights, reverse=True), "larger values stand higher"


def test_a_damaged_file_is_named_and_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tests(tmp_path, 0, 1.0)
    (tmp_path / "bad.json").write_text('{"metrics": {')
    assert main(["trend", str(tmp_path)]) == 3
    told = capsys.readouterr()
    assert "bad.json" in told.err
    assert "avg_prob_mult_error" in told.out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["none"], 2, "does not exist"),
        (["empty"], 2, "neither run directories"),
        (["good", "--only", "nothing*"], 5, "no values"),
        (["good", "--alpha", "0"], 2, "--alpha 0"),
    ],
)
def test_what_cannot_be_shown(
    words: list[str],
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    write_tests(Path("good"), 0, 1.0)
    assert main(["trend", *words]) == code
    assert told in capsys.readouterr().err


def test_a_run_without_the_value_leaves_a_blank(tmp_path: Path) -> None:
    write_tests(tmp_path, 0, 1.0)
    write_tests(tmp_path, 1, "text")
    write_tests(tmp_path, 2, 2.0)
    history = read_history([tmp_path])
    assert sparkline(trends(history, [], 0.01)[0]) == "▁ █"


@pytest.mark.parametrize(
    "values", [[], [1.0], [math.nan], [1.0, 1.0], [-1e300, 1e300], [0.0, 1e-300], [1e-9, 2e-9]]
)
def test_any_values_make_a_chart(values: list[float]) -> None:
    ET.fromstring(line_chart([Line(name="a & b", xs=range(len(values)), ys=values)], title="<t>"))


@pytest.mark.parametrize(("xs", "marked"), [((1, 2, 3), {"1", "2", "3"}), ((1, 1.5), {"1", "1.2", "1.4"})])
def test_whole_steps_are_marked_by_whole_numbers(xs: tuple[float, ...], marked: set[str]) -> None:
    """There is no step one and a half."""
    chart = ET.fromstring(line_chart([Line(name="a", xs=xs, ys=[7.0] * len(xs))], title="t"))
    words = {item.text for item in chart.iter("{http://www.w3.org/2000/svg}text") if item.get("y") == "330"}
    assert marked <= words
    assert words <= {*marked, "1.1", "1.3", "1.5"}


@pytest.mark.parametrize(("ys", "on_the_left"), [((0.0, 1.0, 2.0), True), ((2.0, 1.0, 0.0), False)])
def test_the_names_of_lines_hide_no_point(ys: tuple[float, ...], on_the_left: bool) -> None:
    """A falling line begins where they would be."""
    chart = ET.fromstring(line_chart([Line(name="a run", xs=range(3), ys=ys)], title="t"))
    (name,) = [item for item in chart.iter("{http://www.w3.org/2000/svg}text") if item.text == "a run"]
    assert (float(name.get("x", "nan")) < 320) == on_the_left
