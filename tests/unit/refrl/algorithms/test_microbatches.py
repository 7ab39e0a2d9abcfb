"""Micro-batches hold every row exactly once and stay within their bounds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refrl.algorithms.batching import TrainSample, make_batch
from refrl.algorithms.microbatches import micro_batches_by_tokens, split_by_rows, split_by_tokens

rows_of_lengths = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 30)), min_size=1, max_size=40)


@given(st.integers(1, 50), st.integers(1, 60))
def test_by_rows_keeps_order_and_loses_nothing(num_rows: int, size: int) -> None:
    parts = split_by_rows(num_rows, size)
    assert [row for part in parts for row in part] == list(range(num_rows))
    assert {len(part) for part in parts[:-1]} <= {size}
    assert 1 <= len(parts[-1]) <= size


@given(rows_of_lengths, st.integers(50, 200))
def test_by_tokens_every_row_once_and_no_budget_passed(lengths: list[tuple[int, int]], budget: int) -> None:
    prompts, completions = [prompt for prompt, _ in lengths], [completion for _, completion in lengths]
    parts = split_by_tokens(prompts, completions, budget)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        width = max(prompts[row] for row in part) + max(completions[row] for row in part)
        assert len(part) * width <= budget or len(part) == 1


def test_by_tokens_fills_unequal_micro_batches() -> None:
    assert split_by_tokens([1] * 6, [9, 1, 1, 9, 1, 1], 20) == [[0, 3], [1, 2, 4, 5]]


def test_a_batch_is_cut_and_trimmed() -> None:
    samples = [
        TrainSample(tuple(range(1, p + 1)), tuple(range(20, 20 + c)), (-1.0,) * c, float(n), n)
        for n, (p, c) in enumerate([(2, 9), (3, 1), (1, 2), (2, 8)])
    ]
    batch = make_batch(samples, pad_token_id=0)
    parts = micro_batches_by_tokens(batch, 24)
    assert [part.rewards_B.tolist() for part in parts] == [[0, 3], [1, 2]]
    assert [tuple(part.input_ids_BS.shape) for part in parts] == [(2, 11), (2, 5)]
    assert sum(float(part.num_valid_tokens) for part in parts) == float(batch.num_valid_tokens)
    assert all(part.num_rows * part.input_ids_BS.shape[1] <= 24 for part in parts)
    assert torch.equal(parts[1].completion_ids_BT, torch.tensor([[20, 0], [20, 21]]))


def test_what_cannot_be_split_is_named() -> None:
    with pytest.raises(ValueError, match="row 1 has 30 tokens, more than the budget of 29"):
        split_by_tokens([1, 10], [1, 20], 29)
    with pytest.raises(ValueError, match="0 prompts"):
        split_by_tokens([], [], 10)
    with pytest.raises(ValueError, match="must be positive"):
        split_by_rows(4, 0)
