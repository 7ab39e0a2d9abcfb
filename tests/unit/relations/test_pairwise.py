"""Few rows in which every two values meet, where they may."""

import itertools
from collections.abc import Mapping

from seatrial.relations.cases.pairwise import names_of, pairwise

SIZES = {"a": 3, "b": 2, "c": 4, "d": 2}


def test_every_two_values_meet_in_far_fewer_rows_than_the_product() -> None:
    """48 combinations, at least 12 rows are needed."""
    rows = pairwise(SIZES, lambda row: True)
    for one, other in itertools.combinations(SIZES, 2):
        met = {(row[one], row[other]) for row in rows}
        assert met == set(itertools.product(range(SIZES[one]), range(SIZES[other])))
    assert 12 <= len(rows) <= 18
    assert rows[0] == dict.fromkeys(SIZES, 0)


def test_rows_that_may_not_be_are_never_given_and_the_other_pairs_still_meet() -> None:
    """Value 1 of a excludes value 1 of b."""

    def allowed(row: Mapping[str, int]) -> bool:
        return not (row["a"] == 1 and row["b"] == 1)

    rows = pairwise(SIZES, allowed)
    assert all(map(allowed, rows))
    assert {(row["a"], row["b"]) for row in rows} == {(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)}
    assert {(row["a"], row["c"]) for row in rows} == set(itertools.product(range(3), range(4)))


def test_a_row_is_named_by_what_is_not_plain() -> None:
    """The first value of a dimension goes without saying."""
    names = {"a": ["x", "y"], "b": ["p", "q"]}
    assert names_of({"a": 0, "b": 1}, names) == "q"
    assert names_of({"a": 0, "b": 0}, names) == "defaults"
