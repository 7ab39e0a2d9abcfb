"""FP36-FP39: histories that fooled a gate. The suites that are shipped give the right verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.false_passes.corpus import Row, by_id

from seatrial.checks import FindingKind, lint_check, parse_check
from seatrial.checks.judge import Questions, judge_log
from seatrial.checks.suites import evaluate_suite, load_suite
from seatrial.evidence.runlog import RunLog, Series
from seatrial.migrate.suite_files import suite_texts
from seatrial.migrate.suites import migrate_script
from seatrial.packaged import FOLDERS
from seatrial.verdict import Outcome, combine

SUITES = FOLDERS["suite"]


def log_of(**tags: Sequence[float]) -> RunLog:
    series = {
        f"train/{name}": Series(
            tag=f"train/{name}", steps=np.arange(1, len(values) + 1), values=np.array(values, dtype=float)
        )
        for name, values in tags.items()
    }
    return RunLog(sources=["by hand"], series=series)


def judge(suite: str, log: RunLog, golden: RunLog | None = None) -> Outcome:
    runs = {"golden": golden} if golden else None
    return combine(evaluate_suite(load_suite(SUITES / f"{suite}.yaml"), log, runs=runs))


RISING = [0.1 + 0.02 * step for step in range(30)]


def test_a_run_that_learns_passes_the_suite() -> None:
    assert judge("learning", log_of(reward=RISING)) is Outcome.PASS


@pytest.mark.parametrize("row", by_id("FP36"), ids=str)
def test_a_collapse_after_the_best_step_fails(row: Row) -> None:
    assert judge("learning", log_of(reward=[0.9, *[0.05] * 29])) is Outcome.FAIL, row.right
    assert judge("learning", log_of(reward=[*RISING[:25], *[0.01] * 5])) is Outcome.FAIL


@pytest.mark.parametrize("row", by_id("FP36"), ids=str)
@pytest.mark.parametrize(
    "text",
    ['max(data["train/reward"]) > 0.2', '0.2 <= max(data["train/reward"])', 'min(data["train/loss"]) < 1'],
)
def test_asking_for_the_best_step_alone_is_noted(row: Row, text: str) -> None:
    assert [finding.kind for finding in lint_check(parse_check(text))] == [FindingKind.ONE_STEP_DECIDES], (
        row.evidence
    )


@pytest.mark.parametrize("row", by_id("FP39"), ids=str)
def test_a_collapse_that_recovers_at_the_last_step_fails(row: Row) -> None:
    reward = [*RISING[:10], *[0.0] * 5, *RISING[15:]]
    assert reward[-1] == RISING[-1]
    assert judge("learning", log_of(reward=reward)) is Outcome.FAIL, row.right


@pytest.mark.parametrize("row", by_id("FP53"), ids=str)
def test_a_migrated_suite_asks_how_far_the_run_came(row: Row, tmp_path: Path) -> None:
    guard = (
        """$(jq 'to_entries | .[] | select(.key == "train/loss") | .value | keys | map(tonumber) | max' $M)"""
    )
    call = "python tests/check_metrics.py $M 'max(data[\"train/loss\"]) < 2'"
    (tmp_path / "s.sh").write_text(f"MAX_STEPS=20\nif [[ {guard} -ge $MAX_STEPS ]]; then\n  {call}\nfi\n")
    [text] = suite_texts(migrate_script(tmp_path / "s.sh")).values()
    (tmp_path / "s.yaml").write_text(text)
    questions = Questions(suites=[load_suite(tmp_path / "s.yaml")])
    assert combine(judge_log(log_of(loss=[1.0]), questions)) is Outcome.FAIL, row.right
    assert combine(judge_log(log_of(loss=[1.0] * 20), questions)) is Outcome.PASS


GOLDEN = [1.0 / (1 + step) + 0.5 for step in range(50)]


def test_a_run_that_repeats_the_golden_one_passes() -> None:
    golden = log_of(loss=GOLDEN, grad_norm=GOLDEN)
    assert (
        judge("golden", log_of(loss=[value + 0.001 for value in GOLDEN], grad_norm=GOLDEN), golden)
        is Outcome.PASS
    )


@pytest.mark.parametrize("row", by_id("FP37"), ids=str)
@pytest.mark.parametrize("place", [0, 25, 49])
@pytest.mark.parametrize("wild", [1e9, math.nan, math.inf], ids=str)
def test_one_wild_value_of_fifty_fails(row: Row, place: int, wild: float) -> None:
    loss = [*GOLDEN]
    loss[place] = wild
    golden = log_of(loss=GOLDEN, grad_norm=GOLDEN)
    assert judge("golden", log_of(loss=loss, grad_norm=GOLDEN), golden) is Outcome.FAIL, row.right
    assert (
        judge("golden", log_of(loss=GOLDEN, grad_norm=GOLDEN), log_of(loss=loss, grad_norm=GOLDEN))
        is Outcome.FAIL
    )


@pytest.mark.parametrize("row", by_id("FP37"), ids=str)
def test_a_run_that_is_shorter_than_the_golden_one_fails(row: Row) -> None:
    golden = log_of(loss=GOLDEN, grad_norm=GOLDEN)
    assert judge("golden", log_of(loss=GOLDEN[:-1], grad_norm=GOLDEN[:-1]), golden) is Outcome.FAIL, row.right


@pytest.mark.parametrize("row", by_id("FP38"), ids=str)
def test_nan_does_not_agree_with_nan(row: Row) -> None:
    nothing = log_of(loss=[math.nan] * 50, grad_norm=GOLDEN)
    verdicts = evaluate_suite(load_suite(SUITES / "golden.yaml"), nothing, runs={"golden": nothing})
    assert verdicts[0].outcome is Outcome.FAIL, row.right
    assert "NaN at steps 1, 2, 3, 4, 5 and 45 more" in verdicts[0].reason
