"""Steps that a series should have and has not."""

from __future__ import annotations

import numpy as np
import pytest

from seatrial.evidence.readers.coverage import describe_missing, missing_steps
from seatrial.evidence.runlog import Series


def series(*steps: int) -> Series:
    return Series(tag="x", steps=np.array(steps, dtype=np.int64), values=np.zeros(len(steps)))


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        ([1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12], [7]),
        ([10, 20, 30, 40, 50, 60, 80], [70]),
        ([1, 2, 3], []),
        ([5], []),
        ([], []),
        ([1, 10, 11, 50, 51], []),
        ([0, 3, 4, 9, 100], []),
        ([1, 1, 2, 2, 3, 3], []),
        ([*range(100), 10**15], []),
    ],
)
def test_holes(steps: list[int], missing: list[int]) -> None:
    assert missing_steps(series(*steps)).tolist() == missing


def test_the_note_names_the_worst_tags_first() -> None:
    held = {"a": series(1, 2, 3, 4, 5, 7), "b": series(*range(20), *range(23, 30)), "c": series(1, 2, 3)}
    assert describe_missing(held) == ["steps without a value: b has none at 20, 21, 22; a has none at 6"]
