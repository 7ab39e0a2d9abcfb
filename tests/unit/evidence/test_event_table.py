"""Columns that widen touch only what was written to them."""

from __future__ import annotations

import warnings

import numpy as np

from seatrial.evidence.readers.tensorboard.event_file import _Column


def test_memory_that_was_never_set_is_not_converted() -> None:
    column = _Column(np.float32)
    column.extend(np.array([1.0, 2.0], dtype=np.float32))
    # What malloc may hand out: signalling NaN, whose conversion warns.
    column._parts[0].view(np.uint32)[2:] = 0x7F800001
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        column.extend(np.array([1e300]))
    assert column.joined().tolist() == [1.0, 2.0, 1e300]
