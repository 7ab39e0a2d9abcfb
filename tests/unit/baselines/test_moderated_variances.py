"""Variances of few runs, steadied by one another."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from seatrial.statistics.moderated import limit_of_t, variance_prior


def test_the_prior_of_drawn_variances_is_found() -> None:
    """Draws of the model itself: variances that are scaled inverse chi-square, each estimated with four degrees."""
    random = np.random.default_rng(0)
    true = 2.5 * 6 / random.chisquare(6, 20_000)
    prior = variance_prior(true * random.chisquare(4, 20_000) / 4, 4, most=100)
    assert prior.degrees == pytest.approx(6, rel=0.1)
    assert prior.variance == pytest.approx(2.5, rel=0.05)


def test_variances_that_are_all_alike_are_trusted_up_to_the_limit() -> None:
    """One variance alone, and many that scatter less than chance would have it."""
    assert variance_prior(np.full(50, 3.0), 4).degrees == 4
    assert 0 < variance_prior(np.array([0.7]), 3).degrees <= 4
    assert variance_prior(np.array([0.0, 1.0, 1e9]), 3).degrees < 1


def test_the_limit_is_students_t() -> None:
    """Also for degrees of freedom that are not whole."""
    assert limit_of_t(0.01, 7) == pytest.approx(stats.t.isf(0.005, 7))
    assert limit_of_t(1e-6, 5.5) == pytest.approx(stats.t.isf(5e-7, 5.5))
