"""FP37, FP38, FP41-FP44: what fooled golden comparisons, asked of learned baselines."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from tests.false_passes.corpus import Row, by_id

from seatrial.comparisons.baseline_compare import compare
from seatrial.comparisons.baselines import Baseline, Provenance, learn
from seatrial.evidence.runlog import RunLog, Series
from seatrial.verdict import Outcome, combine

TAG = "train/loss"


def log_of(values: Sequence[float]) -> RunLog:
    steps = np.arange(1, len(values) + 1)
    return RunLog(
        sources=[], series={TAG: Series(tag=TAG, steps=steps, values=np.array(values, dtype=float))}
    )


def baseline_of(runs: Sequence[Sequence[float]]) -> Baseline:
    logs = {str(number): log_of(values) for number, values in enumerate(runs)}
    origin = Provenance(commit="0" * 40, dirty=False, packages={}, host={})
    baseline, faults = learn(logs, [TAG], window=10, provenance=origin)
    assert baseline is not None, faults
    return baseline


def repeats(number: int, seed: int, offset: float = 0.0) -> list[list[float]]:
    random = np.random.default_rng(seed)
    return [[10 + offset + value for value in random.normal(size=50)] for _ in range(number)]


def outcome(baseline: Baseline, *runs: Sequence[float]) -> Outcome:
    return combine(compare(baseline, {str(number): log_of(run) for number, run in enumerate(runs)}))


@pytest.mark.parametrize("row", by_id("FP38", "FP41"), ids=str)
def test_nothing_is_learned_from_nan(row: Row) -> None:
    logs = {str(number): log_of([math.nan] * 50) for number in range(10)}
    origin = Provenance(commit="0" * 40, dirty=False, packages={}, host={})
    baseline, faults = learn(logs, [TAG], window=10, provenance=origin)
    assert baseline is None, row.right
    assert "not finite at steps 1, 2, 3, 4, 5 and 45 more" in faults[0].reason
    assert outcome(baseline_of(repeats(10, 0)), *([[math.nan] * 50] * 6)) is Outcome.FAIL


@pytest.mark.parametrize("row", by_id("FP37", "FP42"), ids=str)
@pytest.mark.parametrize("place", [0, 25, 49])
@pytest.mark.parametrize("wild", [1e9, -1e9, math.nan, math.inf])
def test_one_wild_step_of_fifty_fails(row: Row, place: int, wild: float) -> None:
    new = repeats(6, 1)
    new[3][place] = wild
    assert outcome(baseline_of(repeats(10, 0)), *new) is Outcome.FAIL, row.right


@pytest.mark.parametrize("row", by_id("FP43"), ids=str)
def test_a_small_drift_in_one_direction_fails(row: Row) -> None:
    verdicts = compare(
        baseline_of(repeats(12, 0)),
        {str(number): log_of(run) for number, run in enumerate(repeats(6, 1, offset=0.8))},
    )
    by_name = {verdict.name: verdict.outcome for verdict in verdicts}
    assert by_name[f"{TAG}: worst step"] is Outcome.PASS
    assert by_name[f"{TAG}: drift"] is Outcome.FAIL, row.right


@pytest.mark.parametrize("row", by_id("FP44"), ids=str)
def test_too_few_runs_to_tell_are_blocked(row: Row) -> None:
    old = [[10.0 + offset] * 50 for offset in (-0.7071, 0.7071)]
    assert outcome(baseline_of(old), [13.0] * 50) is Outcome.BLOCKED, row.right
