"""The tests of a baseline alarm as often as they say, and find what they say; by simulation and by tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seatrial.statistics.baselines import (
    drift_deviation,
    needed_repeats,
    power_of,
    summary_deviation,
    worst_deviation,
)

NUM_TRIALS = 4000


def correlated(random: np.random.Generator, num_runs: int, num_steps: int) -> np.ndarray:
    """Runs whose steps are correlated strongly, with a spread that differs by step a hundredfold."""
    return np.cumsum(random.normal(size=(num_runs, num_steps)), axis=1) * np.geomspace(1, 100, num_steps)


@pytest.mark.parametrize("num_new", [1, 3])
@pytest.mark.parametrize("statistic", ["summary", "drift", "worst"])
def test_false_alarms_are_as_stated(statistic: str, num_new: int) -> None:
    random = np.random.default_rng(1)
    alpha, alarms = 0.05, 0
    for _ in range(NUM_TRIALS):
        runs = correlated(random, 5 + num_new, 12)
        old, new = runs[:5], runs[5:]
        if statistic == "summary":
            found = summary_deviation(old.mean(axis=1), new.mean(axis=1), alpha)
        else:
            found = {"drift": drift_deviation, "worst": worst_deviation}[statistic](old, new, alpha)
        alarms += not found.holds
    sd = math.sqrt(alpha * (1 - alpha) / NUM_TRIALS)
    rate = alarms / NUM_TRIALS
    assert rate < alpha + 4 * sd
    if statistic != "worst":  # Bonferroni over correlated steps alarms less often
        assert rate > alpha - 4 * sd


@pytest.mark.parametrize(
    ("num_baseline", "num_new", "shift"), [(5, 3, 3.0), (8, 4, 3.0), (20, 1, 4.0), (4, 4, -2.0), (8, 1, 7.6)]
)
def test_power_is_as_computed(num_baseline: int, num_new: int, shift: float) -> None:
    random = np.random.default_rng(2)
    found = 0
    for _ in range(NUM_TRIALS):
        old = random.normal(size=num_baseline)
        new = shift + random.normal(size=num_new)
        found += not summary_deviation(old, new, 0.01).holds
    power = power_of(num_baseline, num_new, shift, 0.01)
    assert abs(found / NUM_TRIALS - power) < 4 * math.sqrt(max(power * (1 - power), 0.01) / NUM_TRIALS)


def test_the_prediction_interval_is_that_of_the_table() -> None:
    """t at 99 % two-sided with 4 degrees of freedom is 4.604; for one new run times sqrt(1 + 1/5)."""
    old = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    edge = 4.604 * math.sqrt(1 + 1 / 5) * math.sqrt(2.5)
    assert summary_deviation(old, np.array([edge * 0.999]), 0.01).holds
    assert not summary_deviation(old, np.array([edge * 1.001]), 0.01).holds
    assert not summary_deviation(old, np.array([-edge * 1.001]), 0.01).holds


def test_one_new_run_never_finds_three_sd_with_certainty() -> None:
    """Even with the noise known: 3 sd is 0.42 sd past the 2.58 of a 1 % test, which is found with 66 %."""
    assert power_of(1000, 1, 3.0, 0.01) == pytest.approx(0.664, abs=0.01)
    assert needed_repeats(1000, 1, 3.0, 0.01, 0.95).repeats is None


def test_the_needed_repeats_are_the_fewest() -> None:
    needed = needed_repeats(6, 1, 3.0, 0.01, 0.95)
    assert needed.new_runs is not None
    assert needed.of_both is not None
    assert power_of(6, needed.new_runs, 3.0, 0.01) >= 0.95 > power_of(6, needed.new_runs - 1, 3.0, 0.01)
    both = needed.of_both
    assert power_of(both, both, 3.0, 0.01) >= 0.95 > power_of(both - 1, both - 1, 3.0, 0.01)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_never_holds(bad: float) -> None:
    old = np.random.default_rng(0).normal(size=(5, 4))
    new = np.zeros((1, 4))
    new[0, 3] = bad
    with np.errstate(invalid="ignore"):
        assert not summary_deviation(old[:, 3], new[:, 3], 0.01).holds
        assert not drift_deviation(old, new, 0.01).holds
        assert not worst_deviation(old, new, 0.01).holds


def test_repeats_without_noise_are_compared_to_the_bit() -> None:
    old = np.full(4, 0.1 + 0.2)
    assert summary_deviation(old, np.array([0.1 + 0.2]), 0.01).holds
    assert not summary_deviation(old, np.array([0.3]), 0.01).holds
    table = np.tile([1.0, 2.0], (4, 1))
    found = worst_deviation(table, np.array([[1.0, 2.0], [1.0, 2.0000001]]), 0.01)
    assert (found.holds, found.run, found.step) == (False, 1, 1)


def test_new_runs_that_scatter_do_not_widen_their_own_bound() -> None:
    old = np.random.default_rng(0).normal(size=6)
    assert not summary_deviation(old, np.array([0.0, 0.0, 1000.0]), 0.01).holds
