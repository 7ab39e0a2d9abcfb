"""FP01-FP10: series that fooled a gate, and the verdict of a right one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest
from tests.false_passes.corpus import Row, by_id

from seatrial.checks import evaluate_check, parse_check
from seatrial.evidence.runlog import RunLog, Series
from seatrial.verdict import Outcome, Verdict

NAN, INF = math.nan, math.inf


def judge(text: str, points: Mapping[int, float]) -> Verdict:
    """Judge one series, `data["x"]`."""
    series = Series(
        tag="x", steps=np.array([*points], dtype=np.int64), values=np.array([*points.values()], dtype=float)
    )
    return evaluate_check(parse_check(text), RunLog(sources=["by hand"], series={"x": series}))


@pytest.mark.parametrize("row", by_id("FP01"), ids=str)
def test_a_nan_in_the_middle_fails_the_maximum(row: Row) -> None:
    verdict = judge('max(data["x"]) < 1.05', {1: 1.0, 2: NAN, 3: 1.02})
    assert verdict.outcome is Outcome.FAIL, row.right
    assert "NaN at step 2" in verdict.reason


@pytest.mark.parametrize("row", by_id("FP02"), ids=str)
def test_an_infinity_fails_the_minimum(row: Row) -> None:
    verdict = judge('min(data["x"]) > 0.1', {1: 0.5, 2: 0.9, 3: INF})
    assert verdict.outcome is Outcome.FAIL, row.right
    assert "infinite at step 3" in verdict.reason


@pytest.mark.parametrize("row", by_id("FP03"), ids=str)
def test_an_empty_series_has_no_ratio(row: Row) -> None:
    verdict = judge('ratio_above(data["x"], 1.05) < 0.02', {})
    assert verdict.outcome is Outcome.FAIL, row.right
    assert "no samples" in verdict.reason and verdict.num_samples == 0


@pytest.mark.parametrize("row", by_id("FP04"), ids=str)
def test_nan_is_not_below_a_threshold(row: Row) -> None:
    verdict = judge('ratio_above(data["x"], 1.05) < 0.02', {1: NAN, 2: NAN})
    assert verdict.outcome is Outcome.FAIL, row.right
    assert "steps 1, 2" in verdict.reason


@pytest.mark.parametrize("row", by_id("FP05"), ids=str)
def test_nan_does_not_differ_from_a_number(row: Row) -> None:
    verdict = judge('max(data["x"]) != 1', {1: NAN, 2: NAN})
    assert verdict.outcome is Outcome.FAIL, row.right
    assert "steps 1, 2" in verdict.reason


@pytest.mark.parametrize("row", by_id("FP06"), ids=str)
@pytest.mark.parametrize("values", list(itertools.permutations([1.0, 2.0, NAN])), ids=str)
def test_the_place_of_a_nan_does_not_matter_to_the_median(row: Row, values: tuple[float, ...]) -> None:
    verdict = judge('median(data["x"]) < 3', dict(enumerate(values, start=1)))
    assert verdict.outcome is Outcome.FAIL, row.right
    [place] = [step for step, value in enumerate(values, start=1) if math.isnan(value)]
    assert f"NaN at step {place}" in verdict.reason


@pytest.mark.parametrize("row", by_id("FP07"), ids=str)
def test_a_nan_is_no_outlier_to_drop(row: Row) -> None:
    verdict = judge('mean(data["x"], ignore_top_p=0.34) < 2', {1: 1.0, 2: 2.0, 3: NAN})
    assert verdict.outcome is Outcome.FAIL, row.right
    assert "NaN at step 3" in verdict.reason


@pytest.mark.parametrize("row", by_id("FP08"), ids=str)
def test_a_resumed_run_skips_its_first_logged_point(row: Row) -> None:
    seconds = {101: 100.0, 102: 1.0, 103: 1.0, 104: 1.0, 105: 1.0}
    verdict = judge('mean(data["x"], 2) < 2', seconds)
    assert verdict.outcome is Outcome.PASS, row.right
    assert (verdict.value, verdict.num_samples, verdict.steps) == (1.0, 4, (102, 105))


@pytest.mark.parametrize("row", by_id("FP09"), ids=str)
def test_gaps_between_steps_are_not_points(row: Row) -> None:
    verdict = judge('mean(data["x"], -2) > 0.5', {10: 0.9, 20: 0.9, 30: 0.0, 40: 0.9})
    assert verdict.outcome is Outcome.FAIL, row.right
    assert (verdict.value, verdict.num_samples, verdict.steps) == (0.45, 2, (30, 40))


@pytest.mark.parametrize("row", by_id("FP10"), ids=str)
@pytest.mark.parametrize(
    "name", ["mean", "median", "min", "max", "sum", "std", "count", "first", "last", "slope", "len"]
)
def test_every_aggregate_reads_the_same_points(row: Row, name: str) -> None:
    verdict = judge(f'{name}(data["x"]) < 99', {0: 9.0, 1: 1.0, 2: 1.0, 3: 1.0})
    assert (verdict.num_samples, verdict.steps) == (4, (0, 3)), row.right
    assert judge('mean(data["x"]) < 99', {0: 9.0, 1: 1.0, 2: 1.0, 3: 1.0}).value == 3.0
