"""New runs against a baseline: what changed fails, what did not passes, too few runs are Blocked."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from seatrial.comparisons.baseline_compare import Wanted, compare
from seatrial.comparisons.baselines import learn
from seatrial.evidence.runlog import Damage, RunLog
from seatrial.verdict import Outcome, combine

from .conftest import PROVENANCE, learned, make_log, noisy_runs


def judge(baseline, runs, **options):
    return compare(baseline, {f"new {number}": run for number, run in enumerate(runs)}, **options)


def test_the_same_stack_passes() -> None:
    verdicts = judge(learned(noisy_runs(12, 0)), noisy_runs(6, 1))
    assert [verdict.outcome for verdict in verdicts] == [Outcome.PASS] * 4
    assert {verdict.source for verdict in verdicts} == {"learned from 12 repeats"}
    assert [verdict.name.partition(": ")[2] for verdict in verdicts] == [
        "mean of the last 10 points",
        "mean",
        "drift",
        "worst step",
    ]


def test_a_shift_of_three_sd_is_found_with_the_power_stated_at_the_false_alarms_stated() -> None:
    """Whole comparisons: at least 95 % of shifted stacks fail, at most 1 % of unchanged ones."""
    num_trials, found, alarms = 300, 0, 0
    for seed in range(num_trials):
        baseline = learned(noisy_runs(12, 3 * seed))
        new = noisy_runs(6, 3 * seed + 1)
        unchanged = judge(baseline, new)
        assert unchanged[0].details["power"] >= 0.95
        alarms += combine(unchanged) is Outcome.FAIL
        shifted = noisy_runs(6, 3 * seed + 1, shift=3.0 * (1 if seed % 2 else -1))
        found += combine(judge(baseline, shifted)) is Outcome.FAIL
    assert found / num_trials >= 0.95
    assert alarms / num_trials <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / num_trials)


def test_both_directions_fail_whether_or_not_lower_is_better() -> None:
    baseline = learned(noisy_runs(12, 0))
    for shift in (8.0, -8.0):
        assert combine(judge(baseline, noisy_runs(4, 1, shift=shift))) is Outcome.FAIL


def test_too_few_runs_are_blocked_and_told_how_many_would_do() -> None:
    verdicts = judge(learned(noisy_runs(4, 0)), noisy_runs(1, 1))
    assert combine(verdicts) is Outcome.BLOCKED
    assert "of both" in verdicts[0].reason
    assert "1 new against 4 repeats find a shift of 3 sd with power" in verdicts[0].reason


def test_a_difference_that_is_found_with_too_few_runs_fails() -> None:
    assert combine(judge(learned(noisy_runs(4, 0)), noisy_runs(1, 1, shift=500.0))) is Outcome.FAIL


def test_a_slow_drift_that_no_single_step_shows_is_found() -> None:
    """Every step is 0.8 sd off with noise of its own at each: no step is wild, their sum is."""
    random = np.random.default_rng(5)
    old = [make_log(list(random.normal(size=100))) for _ in range(12)]
    new = [make_log(list(0.8 + random.normal(size=100))) for _ in range(7)]
    verdicts = {verdict.name: verdict.outcome for verdict in judge(learned(old), new)}
    assert verdicts["train/loss: drift"] is Outcome.FAIL
    assert verdicts["train/loss: worst step"] is Outcome.PASS


def test_one_wild_step_of_many_is_found_where_the_mean_hides_it() -> None:
    random = np.random.default_rng(6)
    old = [make_log(list(10 * random.normal() + random.normal(size=200) * 0.1)) for _ in range(12)]
    wild = 0.1 * random.normal(size=200)
    wild[77] = 400.0
    verdicts = {verdict.name: verdict for verdict in judge(learned(old), [make_log(list(wild))])}
    assert verdicts["train/loss: mean"].outcome is not Outcome.FAIL
    assert verdicts["train/loss: worst step"].outcome is Outcome.FAIL
    assert "step 78" in verdicts["train/loss: worst step"].reason


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_fails_and_is_named(bad: float) -> None:
    values = list(noisy_runs(1, 1)[0].series["train/loss"].values)
    values[6] = bad
    verdicts = judge(learned(noisy_runs(12, 0)), [*noisy_runs(5, 1), make_log(values)])
    assert [verdict.outcome for verdict in verdicts] == [Outcome.FAIL]
    assert "step 7 in new 5" in verdicts[0].reason


def test_a_run_that_stopped_early_or_logs_other_steps_fails() -> None:
    baseline = learned(noisy_runs(12, 0))
    short = make_log(list(noisy_runs(1, 1)[0].series["train/loss"].values[:15]))
    later = make_log(list(noisy_runs(1, 1)[0].series["train/loss"].values), first_step=2)
    assert "does not have 5 of the 20 steps, the first 16" in judge(baseline, [short])[0].reason
    assert "has 1 additional steps, the first 21" in judge(baseline, [later])[0].reason
    assert judge(baseline, [short])[0].outcome is Outcome.FAIL


def test_a_missing_series_fails_with_the_nearest_name_and_damage_is_blocked() -> None:
    baseline = learned(noisy_runs(12, 0))
    missing = judge(baseline, [make_log([1.0], tag="train/los")])[0]
    assert missing.outcome is Outcome.FAIL
    assert "train/los" in missing.reason
    whole = noisy_runs(1, 1)[0]
    damaged = RunLog(sources=[], series=whole.series, damage=[Damage(path="x", what="cut at step 3")])
    assert judge(baseline, [damaged])[0].outcome is Outcome.BLOCKED


def test_deterministic_repeats_are_compared_exactly_and_need_no_power() -> None:
    curve = [1.0, 0.5, 0.25]
    baseline = learned([make_log(curve)] * 3)
    same = judge(baseline, [make_log(curve)])
    assert [verdict.outcome for verdict in same] == [Outcome.PASS]
    other = judge(baseline, [make_log([1.0, 0.5, math.nextafter(0.25, 1)])])
    assert [verdict.outcome for verdict in other] == [Outcome.FAIL]
    assert "step 3" in other[0].reason


def test_an_expired_baseline_is_blocked() -> None:
    made = datetime(2026, 1, 1, tzinfo=UTC)
    baseline = learned(noisy_runs(4, 0), created_at=made, expires_at=made + timedelta(days=30))
    late = judge(baseline, noisy_runs(1, 1, shift=500), now=made + timedelta(days=31))
    assert [verdict.outcome for verdict in late] == [Outcome.BLOCKED]
    assert "expired on 2026-01-31" in late[0].reason
    assert combine(judge(baseline, noisy_runs(1, 1, shift=500), now=made)) is Outcome.FAIL


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1.0, math.nan, 2.0], "not finite at step 2"),
        ([1.0, 2.0], "2 points to step 2"),
        ([1e200] * 3, "too large"),
    ],
)
def test_repeats_that_nothing_can_be_learned_from(values: list[float], told: str) -> None:
    logs = {"a": make_log([1.0, 2.0, 3.0]), "b": make_log(values)}
    baseline, faults = learn(logs, ["train/loss"], window=10, provenance=PROVENANCE)
    assert baseline is None
    assert told in faults[0].reason


def test_more_metrics_share_the_false_alarms() -> None:
    """The bound of a metric is wider when others are asked with it."""
    runs = []
    for seed in range(10):
        random = np.random.default_rng(seed)
        both = {
            tag: make_log(list(random.normal(size=8)), tag=tag).series[tag] for tag in ("train/a", "train/b")
        }
        runs.append(RunLog(sources=[], series=both))
    baseline = learned(runs[:8])
    alone = judge(baseline, runs[8:], tags=["train/a"])[0]
    shared = judge(baseline, runs[8:])[0]
    assert shared.details["num_tests"] == 8
    assert shared.details["critical_t"] > alone.details["critical_t"]
    assert (
        judge(baseline, runs[8:], wanted=Wanted(alpha=0.2))[0].details["critical_t"]
        < alone.details["critical_t"]
    )
