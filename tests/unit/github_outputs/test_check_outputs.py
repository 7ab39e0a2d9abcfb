"""What `seatrial check` leaves for CI: JUnit, the job summary, annotations."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from seatrial.cli import main
from seatrial.report.github import annotation_lines
from seatrial.verdict import Outcome, Verdict

CHECKS = ['max(data["a"]) < 2', 'max(data["a"]) < 1', 'max(data["b"]) < 1']


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({"a": {"1": 1.5}, "b": {"1": 0.5}}))
    return str(path)


def test_junit_has_a_case_per_check_with_its_value(log: str, tmp_path: Path) -> None:
    assert main(["check", log, *CHECKS, "--junit", str(tmp_path / "out.xml")]) == 1
    suite = ET.parse(tmp_path / "out.xml").getroot()[0]
    assert [suite.get(key) for key in ("tests", "failures", "errors")] == ["3", "1", "0"]
    assert [case.get("name") for case in suite] == CHECKS
    assert [case.find("failure") is not None for case in suite] == [False, True, False]
    values = {item.get("name"): item.get("value") for item in suite[0].iter("property")}
    assert (values["value"], values["bound"]) == ("1.5", "< 2")


def test_blocked_is_an_error(tmp_path: Path) -> None:
    assert main(["check", str(tmp_path / "none"), CHECKS[0], "--junit", str(tmp_path / "out.xml")]) == 3
    suite = ET.parse(tmp_path / "out.xml").getroot()[0]
    assert suite.get("errors") == "1"
    assert suite[0].find("error") is not None


def test_github_gets_a_summary_and_an_annotation(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert main(["check", log, *CHECKS]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert len(lines) == 1
    assert lines[0].startswith('::error title=Fail%3A max(data["a"]) < 1::')
    text = summary.read_text()
    assert text.startswith("before\n## seatrial check")
    assert text.count("| Pass |") == 2
    assert text.count("| Fail |") == 1


def test_elsewhere_nothing_is_printed(
    log: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    main(["check", log, CHECKS[1]])
    assert "::" not in capsys.readouterr().out


def test_a_reason_cannot_start_a_command_of_its_own() -> None:
    verdict = Verdict(name="a,b", outcome=Outcome.BLOCKED, reason="100%\n::error::x")
    assert annotation_lines([verdict]) == ["::warning title=Blocked%3A a%2Cb::100%25%0A::error::x"]
