"""Equivalence classes: members that agree pass, deviations and drifts fail, failed runs are told apart."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from seatrial.cli import main
from seatrial.comparisons.equivalence import EquivalenceClass, compare_member, load_class
from seatrial.errors import UsageError
from seatrial.evidence.runlog import Damage, RunLog, Series
from seatrial.packaged import FOLDERS
from seatrial.verdict import Outcome

TAG = "train/loss"
TOY = """
import json, pathlib, sys
folder, factor = pathlib.Path(sys.argv[1]), float(dict(word.split("=") for word in sys.argv[2:]).get("factor", 1))
if factor < 0:
    sys.exit(7)
(folder / "metrics.json").write_text(json.dumps({"train/loss": {str(s): factor / s for s in range(1, 6)}}))
"""


def content(**changes: object) -> dict[str, object]:
    return {
        "name": "toy",
        "why": "a factor of one changes nothing",
        "command": ["{python}", "toy.py", "{folder}"],
        "logs": "{folder}",
        "reference": {"name": "reference"},
        "members": [{"name": "same", "overrides": ["factor=1.0"]}],
        "metrics": {TAG: {"worst": 0.01, "drift": 0.001}},
        **changes,
    }


def log_of(values: list[float], first_step: int = 1) -> RunLog:
    steps = np.arange(first_step, first_step + len(values))
    return RunLog(sources=[], series={TAG: Series(tag=TAG, steps=steps, values=np.array(values))})


def outcomes(reference: RunLog, log: RunLog) -> list[Outcome]:
    group = EquivalenceClass.model_validate(content())
    return [verdict.outcome for verdict in compare_member(group, "same", reference, log)]


CURVE = [1 / step for step in range(1, 11)]


@pytest.mark.parametrize(
    ("change", "worst", "drift"),
    [
        (lambda step: 0.0, Outcome.PASS, Outcome.PASS),
        (lambda step: 0.009 * (-1) ** step, Outcome.PASS, Outcome.PASS),
        (lambda step: 0.005, Outcome.PASS, Outcome.FAIL),
        (lambda step: -0.005, Outcome.PASS, Outcome.FAIL),
        (lambda step: 0.02 * (-1) ** step, Outcome.FAIL, Outcome.PASS),
        (lambda step: 1e9 if step == 9 else 0.0, Outcome.FAIL, Outcome.FAIL),
    ],
    ids=["equal", "alternating", "drift up", "drift down", "large and alternating", "last wild"],
)
def test_worst_step_and_drift_each_see_their_own(change, worst: Outcome, drift: Outcome) -> None:
    log = log_of([value + change(step) for step, value in enumerate(CURVE)])
    assert outcomes(log_of(CURVE), log) == [worst, drift]


@pytest.mark.parametrize(
    ("reference", "log", "expected"),
    [
        (log_of([math.nan] * 3), log_of([math.nan] * 3), Outcome.FAIL),
        (log_of(CURVE), log_of([*CURVE[:-1], math.nan]), Outcome.FAIL),
        (log_of(CURVE), log_of(CURVE[:-1]), Outcome.FAIL),
        (log_of(CURVE[:-1]), log_of(CURVE), Outcome.FAIL),
        (log_of(CURVE), log_of(CURVE, first_step=2), Outcome.FAIL),
        (log_of(CURVE), RunLog(sources=[], series={}), Outcome.FAIL),
        (RunLog(sources=[], series={}), log_of(CURVE), Outcome.FAIL),
        (log_of([]), log_of([]), Outcome.FAIL),
        (
            log_of(CURVE),
            RunLog(sources=[], series=log_of(CURVE).series, damage=[Damage(path="x", what="cut")]),
            Outcome.BLOCKED,
        ),
    ],
    ids=["NaN in both", "NaN", "short", "long", "shifted", "absent", "absent in both", "empty", "damaged"],
)
def test_what_cannot_be_compared_never_passes(reference: RunLog, log: RunLog, expected: Outcome) -> None:
    assert outcomes(reference, log) == [expected]


@pytest.mark.parametrize(
    ("reference", "members", "code", "told"),
    [
        ([], {"same": ["factor=1.0"]}, 0, "equal to the bit"),
        ([], {"other": ["factor=1.2"]}, 1, "largest residual at step 1 against reference is 0.2"),
        ([], {"broken": ["factor=-1"], "same": ["factor=1.0"]}, 1, "toy: broken runs"),
        (["factor=-1"], {"same": ["factor=1.0"]}, 1, "there is no reference to compare it with"),
    ],
)
def test_the_command_runs_each_configuration(
    reference: list[str],
    members: dict[str, list[str]],
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("toy.py").write_text(TOY)
    group = content(
        reference={"name": "reference", "overrides": reference},
        members=[{"name": name, "overrides": words} for name, words in members.items()],
    )
    Path("class.yaml").write_text(yaml.safe_dump(group))
    assert main(["equivalence", "class.yaml", "--work", "work"]) == code
    assert told in capsys.readouterr().out
    assert main(["equivalence", "class.yaml", "--work", "work"]) == 2
    assert "already exists from an earlier run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"logs": "logs"}, "write {folder} in it"),
        ({"members": [{"name": "reference", "overrides": ["a"]}]}, "two configurations have the same name"),
        ({"members": [{"name": "same"}]}, "it could not differ"),
        ({"members": []}, "members"),
        ({"metrics": {TAG: {"worst": 0.1}}}, "drift"),
        ({"metrics": {TAG: {"worst": float("nan"), "drift": 0}}}, "finite"),
        ({"tolerence": 1}, "tolerence"),
        ({"reference": {"name": "../up"}}, "reference.name"),
    ],
)
def test_a_class_that_could_not_judge_is_refused(
    changes: dict[str, object], told: str, tmp_path: Path
) -> None:
    (tmp_path / "class.yaml").write_text(yaml.safe_dump(content(**changes)))
    with pytest.raises(UsageError) as raised:
        load_class(tmp_path / "class.yaml")
    assert told in str(raised.value)


@pytest.mark.parametrize(
    "path", sorted(FOLDERS["equivalence class"].glob("*.yaml")), ids=lambda path: path.stem
)
def test_shipped_classes_are_valid(path: Path) -> None:
    assert load_class(path).members
