"""Comparisons of what processors give see each way in which a batch is not its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seatrial.targets.transformers.worked.processing.compare import unlike, unlike_rows

SINGLES: list[dict[str, Any]] = [
    {"input_ids": [[5, 6, 7]], "attention_mask": [[1, 1, 1]], "pixel_values": np.ones((1, 3, 2, 4))},
    {"input_ids": [[8]], "attention_mask": [[1]], "pixel_values": np.full((1, 3, 2, 2), 2.0)},
]


def _batch() -> dict[str, Any]:
    values = np.zeros((2, 3, 2, 4))
    values[0], values[1, :, :, :2] = 1, 2
    return {
        "input_ids": [[5, 6, 7], [8, 0, 0]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "pixel_values": values,
    }


def test_a_padded_batch_is_its_rows() -> None:
    """Ids, masks and pictures that are padded with one value are quiet."""
    assert not list(unlike_rows(_batch(), SINGLES, 0, "right"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input_ids", [[5, 6, 7], [8, 0, 1]]),
        ("input_ids", [[5, 6, 7], [0, 0, 8]]),
        ("attention_mask", [[1, 1, 1], [1, 1, 0]]),
        ("pixel_values", _batch()["pixel_values"][::-1]),
        ("pixel_values", _batch()["pixel_values"][:1]),
    ],
)
def test_a_wrong_batch_is_seen(name: str, value: Any) -> None:
    """Another padding, side, mask, order and number are seen."""
    assert list(unlike_rows({**_batch(), name: value}, SINGLES, 0, "right"))


def test_missing_and_new_fields_are_seen() -> None:
    """A field that one of both has is named."""
    batch = _batch()
    batch["other"] = batch.pop("attention_mask")
    said = " ".join(unlike_rows(batch, SINGLES, 0, "right"))
    assert "other is new" in said
    assert "attention_mask is missing" in said
    assert list(unlike({"a": 1}, {"b": 1})) == [" b is missing", " a is new"]


def test_lists_and_arrays_of_equal_numbers_are_equal() -> None:
    """Forms do not matter; shapes, numbers and words do."""
    assert not list(unlike([[1, 2], [3]], [np.array([1, 2]), np.array([3])]))
    assert list(unlike([[1, 2]], [1, 2]))
    assert list(unlike([1.0, np.nan], [1.0, 2.0]))
    assert list(unlike(["a"], ["b"]))
