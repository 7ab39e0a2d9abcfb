"""Change points: found where a level changes, and as seldom as stated where none does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seatrial.statistics.change_points import change_points


def test_false_alarms_are_as_stated_for_heavy_tails() -> None:
    random = np.random.default_rng(0)
    num_trials, alpha = 400, 0.05
    alarms = sum(
        bool(change_points(random.standard_t(2, size=20), alpha, seed)) for seed in range(num_trials)
    )
    assert alarms / num_trials <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / num_trials)
    assert alarms > 0


@pytest.mark.parametrize("place", [8, 15, 22])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_change_of_level_is_placed(place: int, sign: int) -> None:
    random = np.random.default_rng(place)
    values = random.normal(size=30) * 0.1
    values[place:] += sign
    assert change_points(values) == [place]


def test_two_changes_are_found_in_order() -> None:
    values = np.random.default_rng(3).normal(size=60) * 0.1
    values[20:40] += 3
    assert change_points(values) == [20, 40]


def test_a_lone_outlier_is_no_change_of_level() -> None:
    values = list(np.random.default_rng(4).normal(size=30))
    values[12] = 1e9
    assert change_points(values) == []


def test_values_that_are_not_finite_are_passed_over() -> None:
    values = [1.0, math.nan, 1.1, 1.0, 1.1, 1.0, math.inf, 2.0, 2.1, 2.0, 2.1, 2.0]
    assert change_points(values, 0.05) == [7]


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0], [5.0] * 50, [math.nan] * 20])
def test_too_little_to_tell_has_none(values: list[float]) -> None:
    assert change_points(values) == []
