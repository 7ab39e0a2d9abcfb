"""The cache returns what was appended, row by row, through expansion and removal of rows."""

from __future__ import annotations

import pytest
import torch

from refrl.generation.decoding import compacting_order
from refrl.generation.kv_cache import KVCache


def numbered(num_rows: int, num_tokens: int, offset: float) -> torch.Tensor:
    """Return a tensor (B, T, K=2, H=3) of distinct values."""
    count = num_rows * num_tokens * 2 * 3
    return (torch.arange(count, dtype=torch.float32) + offset).view(num_rows, num_tokens, 2, 3)


def make_cache(num_rows: int) -> KVCache:
    return KVCache(num_layers=2, num_rows=num_rows, num_heads=2, num_slots=9, head_dim=3, like=torch.zeros(1))


def test_what_is_appended_comes_back_in_the_order_of_slots() -> None:
    cache = make_cache(2)
    prompt, token = numbered(2, 4, 0), numbered(2, 1, 1000)
    for layer in range(2):
        cache.append(layer, prompt + layer, -prompt - layer)
    cache.advance(4)
    for layer in range(2):
        keys, values = cache.append(layer, token + layer, -token - layer)
        expected = torch.cat([prompt, token], dim=1).transpose(1, 2) + layer
        assert torch.equal(keys, expected)
        assert torch.equal(values, -expected)


@pytest.mark.parametrize("kept", [[0, 1, 2, 3], [0, 1], [3, 1], [2], [3, 2, 1, 0]])
def test_rows_follow_their_content_through_expand_and_keep(kept: list[int]) -> None:
    cache = make_cache(2)
    prompt = numbered(2, 3, 0)
    for layer in range(2):
        cache.append(layer, prompt + layer, -prompt)
    cache.advance(3)
    cache.expand(torch.tensor([1, 0, 1, 1]))
    middle = numbered(4, 1, 500)
    for layer in range(2):
        cache.append(layer, middle, middle)
    cache.advance(1)
    cache.keep(torch.tensor(kept))
    last = numbered(len(kept), 1, 900)
    rows = torch.cat([prompt[[1, 0, 1, 1]][kept], middle[kept], last], dim=1).transpose(1, 2)
    keys, _ = cache.append(0, last, last)
    assert torch.equal(keys, rows)
    keys, _ = cache.append(1, last, last)
    assert torch.equal(keys[:, :, :3], rows[:, :, :3] + 1)


@pytest.mark.parametrize(
    ("going", "order"),
    [
        ([True, True, True], [0, 1, 2]),
        ([False, True, True], [2, 1]),
        ([True, False, True, False, True], [0, 4, 2]),
        ([False, False, True, True], [2, 3]),
        ([True, True, False], [0, 1]),
    ],
)
def test_only_rows_beyond_the_new_end_move(going: list[bool], order: list[int]) -> None:
    assert compacting_order(torch.tensor(going)).tolist() == order
