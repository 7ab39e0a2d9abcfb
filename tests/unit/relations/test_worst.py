"""The largest of many errors never loses a NaN."""

import math

import pytest

from seatrial.relations.worst import is_worse, largest


@pytest.mark.parametrize("errors", [(math.nan, 1.0), (1.0, math.nan), (1.0, math.nan, 2.0), (math.nan,)])
def test_nan_is_the_largest_wherever_it_stands(errors: tuple[float, ...]) -> None:
    """`max` keeps it in the first place only."""
    assert math.isnan(largest(errors))


def test_numbers_are_compared_and_nothing_is_zero() -> None:
    """The plain case."""
    assert largest((0.5, 2.0, 1.0)) == 2.0
    assert largest(()) == 0.0
    assert largest((1.0, math.inf)) == math.inf


def test_nothing_is_worse_than_nan() -> None:
    """Once met it stays, so that the place that is reported is its own."""
    assert is_worse(math.nan, 1.0)
    assert not is_worse(2.0, math.nan)
    assert not is_worse(math.nan, math.nan)
    assert is_worse(2.0, 1.0)
    assert not is_worse(1.0, 1.0)
