"""The page of two runs: what alarms first, both lines on one chart, nothing of a log read as markup."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.unit.report.test_html import NASTY, assert_own_script_alone, make_results, read

from seatrial.cli import main
from seatrial.evidence.runlog import Series
from seatrial.report.watched import MAX_POINTS, thinned


def write_log(path: Path, *, broken: bool = False, number: int = 60, **more: list[float]) -> Path:
    """Write a log of rows in TRL's form; a broken run has no gradient from half-way on."""
    random = np.random.default_rng(0)
    with path.open("w") as rows:
        for step in range(1, number + 1):
            gone = broken and step > number // 2
            row = {
                "step": step,
                "loss": 0.0 if gone else random.standard_normal() / 100,
                "reward": 0.2 + step / 100,
                "reward_std": 0.1,
                "grad_norm": 0.0 if gone else float(1 + random.random()),
                "frac_reward_zero_std": 0.0,
                "learning_rate": 1e-5,
                **{tag: values[step % len(values)] for tag, values in more.items()},
            }
            rows.write(json.dumps(row) + "\n")
    return path


def test_two_runs_are_drawn_in_the_same_charts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code says that one is broken; its rule is named with its step, and drawn into its series first."""
    good, bad = write_log(tmp_path / "good.jsonl"), write_log(tmp_path / "bad.jsonl", broken=True)
    page = tmp_path / "page.html"
    assert main(["report", str(good), str(bad), "--output", str(page)]) == 1
    shown = capsys.readouterr().out
    assert "bad.jsonl: gradient-zero from step 35" in shown
    assert re.search(
        r"good.jsonl: \d+ rules: 0 alarm, \d+ notice, \d+ quiet \(found nothing\), \d+ not trig", shown
    )
    assert shown.endswith(f"Fail - for a browser: {page}\n")
    reader = read(page.read_text())
    text = " ".join(reader.text)
    assert "good.jsonl against bad.jsonl" in text
    assert text.index("gradient-zero") < text.index("learning_rate")
    titles = [
        part.strip() for part in reader.text if part.strip() in {"grad_norm", "reward/mean", "learning_rate"}
    ]
    assert titles[0] == "grad_norm"
    assert {"good.jsonl: grad_norm", "bad.jsonl: grad_norm"} <= set(reader.text)
    assert main(["report", str(good), "--output", str(page)]) == 0


def test_a_notice_of_a_value_that_is_not_finite_does_not_stop_the_report(tmp_path: Path) -> None:
    """Such a value in a series that no rule needs is a notice, and the run passes."""
    log = write_log(tmp_path / "log.jsonl", odd=[float("nan"), 1.0])
    page = tmp_path / "page.html"
    assert main(["report", str(log), "--output", str(page)]) == 0
    assert "is nan; usually an overflow" in " ".join(read(page.read_text()).text).replace("  ", " ")


def test_the_page_loads_nothing_and_reads_nothing_as_markup(tmp_path: Path) -> None:
    """Names of series and of files are text, regardless of what they hold."""
    place = tmp_path / "<img src=x onerror=y>"
    place.mkdir()
    log = write_log(place / "<b>.jsonl", **{NASTY: [1.0]})
    page = tmp_path / "page.html"
    main(["report", str(log), "--output", str(page)])
    assert_own_script_alone(read(page.read_text()))
    tags = read(page.read_text()).tags
    assert not {"img", "b", "link", "iframe"} & {tag for tag, _ in tags} - {"b"}
    assert not [
        name for _, attributes in tags for name in attributes if name.startswith("on") or name == "src"
    ]
    assert "<b>.jsonl" in " ".join(read(page.read_text()).text)


def test_trials_of_two_run_directories_are_matched_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each trial that both have is a part of the page; runs that share none are refused."""
    for run, trials in (("one", ("0-a", "1-b")), ("two", ("0-a", "2-c")), ("three", ("9-x", "9-y"))):
        for trial in trials:
            folder = tmp_path / run / "trials" / trial
            folder.mkdir(parents=True)
            series = {str(step): 0.1 * step for step in range(30)}
            (folder / "metrics.json").write_text(json.dumps({"train/loss": series, "train/reward": series}))
        (tmp_path / run / "results.json").write_text(make_results().to_text())
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "one"), str(tmp_path / "two"), "--output", str(page)]) == 1
    assert "two: its trials: Fail" in capsys.readouterr().out
    text = " ".join(read(page.read_text()).text)
    assert "Trials of one: Fail" in " ".join(text.split())
    assert "0-a" in text and "1-b" not in text and "2-c" not in text
    assert main(["report", str(tmp_path / "one"), str(tmp_path / "three"), "--output", str(page)]) == 2
    assert "no trial of one name" in capsys.readouterr().err


def test_a_long_series_keeps_its_extremes() -> None:
    """A spike of one point among a hundred thousand is drawn; a stretch without a number leaves a gap."""
    values = np.zeros(100_000)
    values[77_777], values[:1000] = 9.0, np.nan
    steps, drawn = thinned(Series(tag="x", steps=np.arange(len(values)), values=values))
    assert len(drawn) <= MAX_POINTS
    assert drawn[list(steps).index(77_777)] == 9.0
    assert np.isnan(drawn[0])


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("page", "page.html"),
        ("page.htm", "page.htm"),
        ("folder", "folder/report.html"),
        ("v1.2/", "v1.2/report.html"),
    ],
)
def test_the_page_has_a_name_that_a_browser_opens(
    tmp_path: Path, given: str, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "log.jsonl")
    for folder in ("folder", "v1.2"):
        (tmp_path / folder).mkdir()
    assert main(["report", str(log), "--output", str(tmp_path / given)]) == 0
    assert capsys.readouterr().out.endswith(f"for a browser: {tmp_path / written}\n")
    assert (tmp_path / written).read_text().endswith("</html>\n")


def test_a_page_in_a_folder_that_is_missing_says_which_to_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "log.jsonl")
    assert main(["report", str(log), "--output", str(tmp_path / "none" / "page.html")]) == 3
    message = capsys.readouterr().err
    assert f"make the folder {tmp_path / 'none'}, or give another --output" in message
