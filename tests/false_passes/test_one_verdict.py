"""One log and one expression have one verdict: in `check`, a functional test, `bisect --check` and a trial."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from tests.false_passes.corpus import Row, all_rows, by_id
from tests.false_passes.logged_cases import CASES, OTHERS, Case
from tests.unit.trials.toy_target import ToyTarget

import seatrial
from seatrial.bisect.judge import Beginning, Criteria, Evidence, judge
from seatrial.bisect.outcomes import RunOutcome
from seatrial.checks import parse_check
from seatrial.cli import main
from seatrial.launch import Launched
from seatrial.targets.base import JobRequest
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.run import check_sensor
from seatrial.verdict import Outcome


class Answer(NamedTuple):
    """What a verdict is, whoever gave it."""

    outcome: Outcome
    reason: str


def by_command(case: Case, logs: Path, scratch: Path) -> Answer:
    written = scratch / f"{case.id}.json"
    main(["check", str(logs), case.expression, "--json", str(written)])
    [verdict] = json.loads(written.read_text())["verdicts"]
    return Answer(Outcome(verdict["outcome"]), verdict["reason"])


def by_bisect(case: Case, logs: Path, scratch: Path) -> Answer:
    (scratch / "run.log").touch()
    left = Evidence(
        exit_status=0,
        timed_out=False,
        console=scratch / "run.log",
        logs=logs,
        junit=scratch / "none.xml",
        beginning=Beginning(run_dir=logs, device=logs.stat().st_dev, of_file_system=0.0, of_machine=0.0),
    )
    judgement = judge(left, Criteria(checks=(parse_check(case.expression),)))
    outcome = Outcome.SKIPPED if judgement.outcome is RunOutcome.SKIP else Outcome(judgement.outcome.value)
    return Answer(outcome, judgement.reason.removeprefix(f"{case.expression}: "))


def by_trial(case: Case, logs: Path, scratch: Path) -> Answer:
    job = replace(
        ToyTarget().job(JobRequest(recipe="grpo-smoke", model=scratch, directory=scratch, seed=0)),
        log_dir=logs,
    )
    launched = Launched(
        argv=("true",),
        returncode=0,
        seconds=0.0,
        timed_out=False,
        num_stragglers=0,
        log_path=scratch / "run.log",
    )
    verdict = check_sensor(case.expression, "what it means").judge(RunEvidence(job, launched, ()))
    return Answer(verdict.outcome, verdict.reason)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that holds the log of each case in a folder of its own."""
    root = tmp_path_factory.mktemp("corpus")
    for case in CASES:
        (root / case.id).mkdir()
        case.write(root / case.id)
    return root


@pytest.fixture(scope="module")
def by_functional_test(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """Return the answers of functional tests, by case: all of them in one session of pytest."""
    project = tmp_path_factory.mktemp("project")
    (project / "pytest.ini").touch()
    for case in CASES:
        spec = {"command": "true", "logs": str(logs / case.id), "checks": [case.expression]}
        (project / f"{case.id}.functional.yaml").write_text(yaml.safe_dump(spec))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "seatrial.pytest_plugin", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(
        [*words, "--tracker-results", str(project / "results.json"), str(project)],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    found = {}
    for name, test in json.loads((project / "results.json").read_text())["tests"].items():
        [verdict] = test["verdicts"]
        found[name.rpartition("::")[2]] = Answer(Outcome(verdict["outcome"]), verdict["reason"])
    assert len(found) == len(CASES), ran.stdout
    return found


@pytest.mark.parametrize(
    "row",
    by_id("FP45", "FP46", "FP47", "FP48", "FP49", "FP50", "FP51", "FP52"),
    ids=str,
)
def test_what_a_log_hides_is_not_passed(row: Row, logs: Path, tmp_path: Path) -> None:
    for case in CASES:
        if case.row == row.id:
            assert by_command(case, logs / case.id, tmp_path).outcome is case.outcome, row.right


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_all_four_ways_give_the_right_verdict_with_one_reason(
    case: Case, logs: Path, tmp_path: Path, by_functional_test: dict[str, Answer]
) -> None:
    answers = {way(case, logs / case.id, tmp_path) for way in (by_command, by_bisect, by_trial)}
    assert answers == {by_functional_test[case.id]}
    assert {answer.outcome for answer in answers} == {case.outcome}


def test_each_row_of_the_corpus_is_a_case_or_says_why_not() -> None:
    rows = {row.id for row in all_rows()}
    cases = {case.row for case in CASES}
    assert cases | OTHERS.keys() == rows
    assert not cases & OTHERS.keys()


def test_nothing_else_judges_a_check_by_itself() -> None:
    package = Path(seatrial.__file__).parent
    outside = [path for path in package.rglob("*.py") if package / "checks" not in path.parents]
    assert outside and not [path for path in outside if "evaluate_check" in path.read_text()]
