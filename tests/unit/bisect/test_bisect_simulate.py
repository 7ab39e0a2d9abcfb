"""`seatrial bisect --simulate`: cost and accuracy before any run, from made-up and from recorded noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seatrial.bisect.evidence_model import Observation, Question
from seatrial.bisect.journal import NAME, Journal
from seatrial.bisect.outcomes import Run, RunOutcome
from seatrial.bisect.simulate import Moment, Recorded
from seatrial.bisect.task import Task
from seatrial.cli import main

GOOD, BAD = "a" * 40, "b" * 40


def _journal(folder: Path, good: list[float], bad: list[float]) -> Path:
    """Write the journal of a bisect by metric that ran its ends."""
    task = Task(repository="/x", good=GOOD, bad=BAD, command=("x",), metric='mean(data["a"])')
    with Journal(folder / NAME) as journal:
        journal.write("question", version=1, task=task.to_json())
        for sha, values in ((GOOD, good), (BAD, bad)):
            for number, value in enumerate(values):
                run = Run(
                    number=number, commit=sha, outcome=RunOutcome.PASS, reason="", value=value, seconds=120.0
                )
                journal.write("result", **run.to_json())
    return folder / NAME


def _cells(out: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("|")
    ]


def test_made_up_noise_is_compared_with_plain_bisection(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bisect", "--simulate", "--commits", "16", "--rates", "0,1", "--trials", "20"]
    assert main([*words, "--noise", "none"]) == 0
    rows = {row[1]: row for row in _cells(capsys.readouterr().out)[2:]}
    # Nothing is noisy: both ends and four halvings, always right; five runs of each are five times the cost.
    assert rows["seatrial bisect"][2:] == ["6", "6", "1.000"]
    assert rows["git bisect"][2:] == ["4", "4", "1.000"]
    assert rows["five runs a commit, majority"][2] == "20"


def test_recorded_noise_is_drawn_from_the_ends_and_told_in_minutes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = _journal(tmp_path, [0.50, 0.51, 0.49, 0.505], [0.30, 0.31, 0.29])
    words = ["bisect", "--simulate", "--commits", "32", "--trials", "20", "--recorded", str(journal)]
    assert main(words) == 0
    rows = _cells(capsys.readouterr().out)
    assert rows[0][-1] == "minutes, median"
    name, _, median, _, right, minutes = rows[2]
    assert name == "recorded: 4 runs of GOOD, 3 of BAD"
    assert float(right) >= 0.9
    assert float(minutes) == 2 * float(median)


def test_recorded_runs_are_those_of_the_same_side() -> None:
    good = tuple(Observation(position=0, failed=False, value=value) for value in (1.0, 2.0))
    bad = tuple(Observation(position=0, failed=False, value=value) for value in (7.0, 8.0))
    world, generator = Recorded(good, bad, Question.METRIC), np.random.default_rng(0)
    assert {world.run(Moment(False, 0.0, 0), generator).value for _ in range(40)} == {1.0, 2.0}
    assert {world.run(Moment(True, 1.0, 0), generator).value for _ in range(40)} == {7.0, 8.0}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--trials", "0"], "--trials 0"),
        (["--commits", "0"], "--commits 0"),
        (["--rates", "5,0.6"], "between 0 and 1"),
        (["--rates", "x"], "two numbers"),
    ],
)
def test_wrong_settings_are_one_message(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", "--simulate", *words]) == 2
    assert told in capsys.readouterr().err


def test_too_few_recorded_runs_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = _journal(tmp_path, [0.5, 0.6], [0.3])
    assert main(["bisect", "--simulate", "--recorded", str(journal)]) == 2
    assert "1 runs of BAD" in capsys.readouterr().err
