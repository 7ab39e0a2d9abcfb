"""Reductions: shares that add up, weights per token, and padding that is selected away."""

from __future__ import annotations

import math

import pytest
import torch

from refrl.algorithms.reductions import reduce_tokens, select_valid

VALUES = torch.tensor([[1.0, 2.0, 4.0], [10.0, math.nan, math.inf], [math.nan] * 3]).double()
MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).double()


def reduced(reduction: str, rows: slice = slice(None)) -> float:
    return float(
        reduce_tokens(
            VALUES[rows],
            MASK[rows],
            reduction,  # type: ignore[arg-type]
            global_valid_tokens=4,
            global_valid_seqs=2,
            fixed_length=8 if reduction == "fixed_length" else None,
        )
    )


@pytest.mark.parametrize(
    ("reduction", "value"),
    [("token", 17 / 4), ("sequence", (7 / 3 + 10) / 2), ("fixed_length", (7 / 8 + 10 / 8) / 2)],
)
def test_values_by_hand_and_rows_one_by_one(reduction: str, value: float) -> None:
    assert reduced(reduction) == pytest.approx(value)
    assert sum(reduced(reduction, slice(row, row + 1)) for row in range(3)) == pytest.approx(value)
    assert reduced(reduction, slice(2, 3)) == 0


@pytest.mark.parametrize(
    ("reduction", "weights"),
    [("token", [1 / 4, 1 / 4]), ("sequence", [1 / 6, 1 / 2]), ("fixed_length", [1 / 16, 1 / 16])],
)
def test_weight_of_a_token_in_a_long_and_in_a_short_row(reduction: str, weights: list[float]) -> None:
    values = VALUES.clone().requires_grad_()
    reduce_tokens(
        values,
        MASK,
        reduction,
        global_valid_tokens=4,
        global_valid_seqs=2,
        fixed_length=8,  # type: ignore[arg-type]
    ).backward()
    assert values.grad is not None
    assert values.grad[0].tolist() == pytest.approx([weights[0]] * 3)
    assert values.grad[1].tolist() == pytest.approx([weights[1], 0, 0])
    assert values.grad[2].tolist() == [0, 0, 0]


def test_selection_passes_no_gradient_to_padding_even_from_nan() -> None:
    values = torch.tensor([0.0, 1.0], requires_grad=True)
    selected = select_valid(values, torch.tensor([0.0, 1.0]))
    (torch.tensor([math.nan, 2.0]) * selected).nansum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0, 2]


def test_an_unknown_reduction_is_named() -> None:
    with pytest.raises(ValueError, match="'mean'"):
        reduced("mean")
    with pytest.raises(ValueError, match="fixed_length"):
        reduce_tokens(VALUES, MASK, "fixed_length", global_valid_tokens=1, global_valid_seqs=1)
