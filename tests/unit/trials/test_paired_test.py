"""The exact test of paired outcomes, against an independent implementation and its own promise."""

import itertools
import random

import pytest
from scipy import stats

from seatrial.statistics.paired_test import critical_value, paired_test, power, upper_tail


@pytest.mark.parametrize(("changed", "better"), [(0, 0), (1, 0), (1, 1), (7, 5), (40, 31), (300, 170)])
def test_the_tail_is_the_binomials(changed: int, better: int) -> None:
    """scipy's exact binomial test gives the same p."""
    wanted = stats.binomtest(better, changed, 0.5, alternative="greater").pvalue if changed else 1.0
    assert float(upper_tail(changed, better)) == pytest.approx(wanted, rel=1e-12)


def test_a_small_case_by_listing_all_signs() -> None:
    """Of the 2^5 ways to give five changed prompts a direction, those with at least four better."""
    changes = [0.5, 0.25, -1.0, 0.0, 1.0, 0.125]
    found = paired_test([0.0] * 6, changes)
    signs = list(itertools.product([0, 1], repeat=5))
    assert found.p_value == sum(sum(sign) >= 4 for sign in signs) / len(signs)
    assert (found.num_pairs, found.num_better, found.num_worse) == (6, 4, 1)
    assert found.rise == pytest.approx(sum(changes) / 6)


def test_nothing_changed_is_no_evidence() -> None:
    """p is 1, at the ceiling too."""
    assert paired_test([1.0] * 50, [1.0] * 50).p_value == 1.0


def test_rounding_is_no_change() -> None:
    """Means over runs differ in their last bits."""
    assert paired_test([1 / 3] * 40, [1 / 3 + 1e-15] * 40).p_value == 1.0


@pytest.mark.parametrize("number", [1, 5, 9, 10, 11, 50, 128])
def test_the_error_rate_is_kept_and_not_wasted(number: int) -> None:
    """The critical value is the least whose tail is within alpha."""
    alpha = 1e-3
    critical = critical_value(number, alpha)
    tail = stats.binom(number, 0.5).sf(critical - 1)
    assert tail <= alpha
    if critical > 0:
        assert stats.binom(number, 0.5).sf(critical - 2) > alpha


def test_power_by_simulation() -> None:
    """The closed form agrees with ten thousand draws within four standard errors."""
    n, better, worse, alpha, draws = 60, 0.30, 0.08, 0.01, 10_000
    random_source = random.Random(0)
    rejected = 0
    for _ in range(draws):
        sample = random_source.choices([1.0, -1.0, 0.0], [better, worse, 1 - better - worse], k=n)
        rejected += paired_test([0.0] * n, sample).p_value <= alpha
    exact = power(n, better, worse, alpha)
    assert abs(rejected / draws - exact) < 4 * (exact * (1 - exact) / draws) ** 0.5


def test_power_at_the_null_is_within_alpha() -> None:
    """As many worse as better: the test rejects no more often than it says."""
    for n in (20, 128):
        assert power(n, 0.2, 0.2, 1e-3) <= 1e-3


@pytest.mark.parametrize("pair", [([], []), ([1.0], [1.0, 2.0])])
def test_no_pairs(pair: tuple[list[float], list[float]]) -> None:
    """There is nothing to test."""
    with pytest.raises(ValueError, match="no pairs"):
        paired_test(*pair)
