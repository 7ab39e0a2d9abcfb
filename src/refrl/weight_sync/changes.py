"""Which elements of a tensor differ from those of before, bit by bit.

N elements, K of which differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By size of an element: the integers in which bits are compared."""
_BLOCK_BYTES = 2**20
"""Compared at a time on a CPU: both versions and the mask stay in its cache while places and values are taken."""


class Changes(NamedTuple):
    """What differs."""

    places_K: Tensor
    """Ascending, int64."""
    values_K: Tensor
    """The new elements there."""


def changes(now_N: Tensor, before_N: Tensor) -> Changes:
    """Return where two flat, contiguous tensors of one type differ, and the elements of the first one there.

    Bits are compared: a NaN is equal to itself, minus zero is not equal to zero. On a CPU a block that is
    the same costs its comparison alone; one thread does it: two take longer, for they wait for one another.
    """
    now_bits_N, before_bits_N = _bits(now_N), _bits(before_N)
    if now_N.device.type != "cpu":
        places_K = (now_bits_N != before_bits_N).nonzero().squeeze(1)
        return Changes(places_K, now_N.index_select(0, places_K))
    places, values = _changed(now_bits_N.numpy(), before_bits_N.numpy())
    return Changes(torch.from_numpy(places), torch.from_numpy(values).view(now_N.dtype))


def _changed(now_N: Any, before_N: Any) -> tuple[Any, Any]:
    blocks = list(_blocks(now_N, before_N, max(1, _BLOCK_BYTES // now_N.itemsize)))
    if not blocks:
        return np.empty(0, np.int64), np.empty(0, now_N.dtype)
    return np.concatenate([places for places, _ in blocks]), np.concatenate([values for _, values in blocks])


def _blocks(now_N: Any, before_N: Any, size: int) -> Iterator[tuple[Any, Any]]:
    """Yield the places and values of each block that differs."""
    differs_C = np.empty(min(size, now_N.size), bool)
    for first in range(0, now_N.size, size):
        now_C, before_C = now_N[first : first + size], before_N[first : first + size]
        mask_C = np.not_equal(now_C, before_C, out=differs_C[: now_C.size])
        places = np.flatnonzero(mask_C)
        if places.size:
            values = now_C.take(places)
            places += first
            yield places, values


def _bits(flat_N: Tensor) -> Tensor:
    """Return the elements as integers."""
    return flat_N.detach().view(_BITS[flat_N.element_size()])
