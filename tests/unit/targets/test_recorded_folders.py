"""Tests of the numbers of a release that hold for another."""

import pytest

pytest.importorskip("torch")

from packaging.version import Version

from seatrial.targets.transformers.folder_records import numbers_for

BOTH, EACH, OLD = {"4.57.6": [1.0]}, {"4.57": [1.0], "5.24.0": [2.0]}, {"4.57": [1.0]}


@pytest.mark.parametrize(
    ("installed", "given", "due"),
    [
        ("4.57.6", BOTH, [1.0]),
        ("5.3.0", BOTH, [1.0]),
        ("4.57.1", BOTH, None),
        ("4.57.1", EACH, [1.0]),
        ("5.3.0", EACH, None),
        ("5.25.0.dev0", EACH, [2.0]),
        ("5.24.0", OLD, None),
        ("4.56.0", OLD, None),
    ],
)
def test_numbers_hold_from_a_release_on_or_in_a_line_alone(installed, given, due):
    assert numbers_for(given, Version(installed)) == due
