"""Elements that a kernel's order exchanged are put back, whatever the order and the type are."""

import pytest
import torch
from torch import Tensor

from refrl.generation.vllm.weights import unpacked


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 6, 40_000])
def test_what_was_packed_is_found_again(dtype: torch.dtype, size: int) -> None:
    """Bit by bit, with values that are not numbers; more elements than one digit counts."""
    torch.manual_seed(size)
    plain = torch.randn(size, dtype=torch.float32).to(dtype)
    plain[0], plain[-1] = float("nan"), -0.0
    order_N = torch.randperm(size)

    def pack(tensor: Tensor) -> Tensor:
        return tensor.reshape(-1)[order_N].view(tensor.shape)

    bits = torch.int32 if dtype is torch.float32 else torch.int16
    found = unpacked(pack(plain).view(2 if size > 1 else 1, -1), lambda one: pack(one))
    assert torch.equal(found.view(bits).reshape(-1), plain.view(bits))
