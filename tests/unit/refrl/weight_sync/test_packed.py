"""Tensors packed into bytes lie there unchanged."""

import pytest
import torch

from refrl.weight_sync.broadcast import pack, packed_size, unpack


def test_every_type_and_shape_comes_back_to_the_bit() -> None:
    """Also where one ends within the next one's alignment, has no element, or no dimension; a NaN stays."""
    tensors = [
        torch.tensor([1.5, float("nan"), -0.0], dtype=torch.bfloat16),
        torch.zeros(0),
        torch.arange(5, dtype=torch.int32),
        torch.tensor(2.0, dtype=torch.float64),
        torch.tensor([True, False, True]),
        torch.arange(6.0).view(2, 3),
    ]
    bytes_N = torch.full((packed_size(tensors) + 3,), 255, dtype=torch.uint8)
    pack(tensors, bytes_N)
    found = unpack(bytes_N, [(tensor.dtype, tensor.shape) for tensor in tensors])
    for one, other in zip(found, tensors, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.reshape(-1).view(torch.uint8).tolist() == other.reshape(-1).view(torch.uint8).tolist()


def test_more_than_arrived_is_refused() -> None:
    """A list that is not of these bytes."""
    with pytest.raises(ValueError, match="more than 16 bytes"):
        unpack(torch.zeros(16, dtype=torch.uint8), [(torch.float32, (4,)), (torch.float32, (1,))])
