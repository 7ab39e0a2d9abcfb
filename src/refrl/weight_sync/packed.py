"""Packs tensors of any types into one byte buffer, and unpacks them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

_ALIGNED = 8
"""Every tensor begins at a multiple of this many bytes, so that it can be used in place."""


def packed_size(tensors: Sequence[Tensor]) -> int:
    """Return how many bytes `pack` needs."""
    return sum(_padded_size(tensor.nbytes) for tensor in tensors)


def pack(tensors: Sequence[Tensor], into_N: Tensor) -> None:
    """Write tensors, of any device, into bytes one after another.

    Args:
        tensors: each in row-major order.
        into_N: uint8, N at least `packed_size`.
    """
    start = 0
    for tensor in tensors:
        into_N[start : start + tensor.nbytes].view(tensor.dtype).copy_(tensor.detach().reshape(-1))
        start += _padded_size(tensor.nbytes)


def unpack(bytes_N: Tensor, listed: Sequence[tuple[torch.dtype, Sequence[int]]]) -> list[Tensor]:
    """Return the tensors in a byte buffer, without a copy.

    Args:
        bytes_N: uint8.
        listed: type and shape of each, in their order.

    Raises:
        ValueError: the buffer is too short for them.
    """
    found, start = [], 0
    for dtype, shape in listed:
        size = prod(shape) * dtype.itemsize
        if size < 0 or start + size > bytes_N.numel():
            raise ValueError(f"tensors of more than {bytes_N.numel()} bytes are listed, and so many arrived")
        found.append(bytes_N[start : start + size].view(dtype).view(tuple(shape)))
        start += _padded_size(size)
    return found


def _padded_size(num_bytes: int) -> int:
    return num_bytes + -num_bytes % _ALIGNED
