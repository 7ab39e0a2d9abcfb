"""What changed between two versions of a tensor: every place, and the new elements, to the bit."""

import pytest
import torch

from refrl.weight_sync import changes as module
from refrl.weight_sync.changes import changes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("size", [0, 1, 3, 8, 9, 17, 64, 183])
def test_every_place_that_changed_is_found(
    dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of five words at most, with what is left over at the end; few changes, many, and all."""
    monkeypatch.setattr(module, "_BLOCK_WORDS", 5)
    before_N = torch.arange(size).to(dtype)
    for changed in (
        {*range(size)},
        {*range(0, size, 3)},
        {*range(1, size, 19)},
        {0, size - 1} - {size, -1},
        set(),
    ):
        now_N = before_N.clone()
        for place in changed:
            now_N[place] += 1
        found = changes(now_N, before_N)
        assert found.places_K.tolist() == sorted(changed)
        assert found.values_K.dtype == dtype
        assert torch.equal(found.values_K, now_N[sorted(changed)])


def test_tensors_may_lie_anywhere_in_memory() -> None:
    """At an odd element of a larger one, as parameters of a flat buffer do: words are not at addresses of words."""
    buffer_N, other_N = torch.arange(100, dtype=torch.bfloat16), torch.arange(100, dtype=torch.bfloat16)
    buffer_N[[4, 60, 98]] += 7
    found = changes(buffer_N[3:99], other_N[3:99])
    assert found.places_K.tolist() == [1, 57, 95]
    assert found.values_K.tolist() == [11, 67, 105]


def test_bits_are_compared() -> None:
    """A NaN is equal to itself, and minus zero is not zero; parameters that are trained may be given."""
    before_N = torch.tensor([0.0, float("nan"), 1.0])
    now_N = torch.nn.Parameter(torch.tensor([-0.0, float("nan"), 1.0]))
    found = changes(now_N, before_N)
    assert found.places_K.tolist() == [0]
    assert torch.signbit(found.values_K).tolist() == [True]
