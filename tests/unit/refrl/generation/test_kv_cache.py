"""The cache returns what was appended, row by row, through expansion and removal of rows."""

from __future__ import annotations

import pytest
import torch

from refrl.generation.decoding import compacting_order
from refrl.generation.lean_decoder import KVCache, LayerSlots


def numbered(num_rows: int, num_tokens: int, offset: float) -> torch.Tensor:
    """Return a tensor (B, T, K=2, H=3) of distinct values."""
    count = num_rows * num_tokens * 2 * 3
    return (torch.arange(count, dtype=torch.float32) + offset).view(num_rows, num_tokens, 2, 3)


def make_cache(num_rows: int) -> KVCache:
    return KVCache(num_layers=2, num_rows=num_rows, num_heads=2, num_slots=9, head_dim=3, like=torch.zeros(1))


def append(cache: KVCache, first_layer: torch.Tensor, second_layer: torch.Tensor) -> list[LayerSlots]:
    """Write keys (B, T, K, H) and their negatives as values into both layers."""
    layers = cache.extend(first_layer.shape[1])
    for slots, content in zip(layers, (first_layer, second_layer), strict=True):
        slots.new_keys_BKTH.copy_(content.transpose(1, 2))
        slots.new_values_BKTH.copy_(-content.transpose(1, 2))
    return layers


def test_what_is_appended_comes_back_in_the_order_of_slots() -> None:
    cache = make_cache(2)
    prompt, token = numbered(2, 4, 0), numbered(2, 1, 1000)
    append(cache, prompt, prompt + 1)
    layers = append(cache, token, token + 1)
    for number, slots in enumerate(layers):
        expected = torch.cat([prompt, token], dim=1).transpose(1, 2) + number
        assert torch.equal(slots.keys_BKSH, expected)
        assert torch.equal(slots.values_BKSH, -expected)


@pytest.mark.parametrize("kept", [[0, 1, 2, 3], [0, 1], [3, 1], [2], [3, 2, 1, 0]])
def test_rows_follow_their_content_through_expand_and_keep(kept: list[int]) -> None:
    cache = make_cache(2)
    prompt, middle, last = numbered(2, 3, 0), numbered(4, 1, 500), numbered(len(kept), 1, 900)
    append(cache, prompt, prompt + 1)
    cache.expand(torch.tensor([1, 0, 1, 1]))
    append(cache, middle, middle + 1)
    cache.keep(torch.tensor(kept))
    layers = append(cache, last, last + 1)
    rows = torch.cat([prompt[[1, 0, 1, 1]][kept], middle[kept], last], dim=1).transpose(1, 2)
    for number, slots in enumerate(layers):
        assert torch.equal(slots.keys_BKSH, rows + number)
        assert torch.equal(slots.values_BKSH, -rows - number)


@pytest.mark.parametrize(
    ("num_rows", "ended", "order"),
    [(3, [], [0, 1, 2]), (3, [0], [2, 1]), (5, [1, 3], [0, 4, 2]), (4, [0, 1], [2, 3]), (3, [2], [0, 1])],
)
def test_only_rows_beyond_the_new_end_move(num_rows: int, ended: list[int], order: list[int]) -> None:
    assert compacting_order(num_rows, ended) == order
