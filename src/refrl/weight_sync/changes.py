"""Which elements of a tensor differ from those of before, bit by bit.

N elements, K of which differ; W words of eight bytes; C words of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By size of an element: the integers in which bits are compared."""
_WORD_BYTES = 8
_BLOCK_WORDS = 2**17
"""Compared at a time on a CPU: both versions stay in its cache while places and values are taken."""
_GROUP = 16
"""Elements whose words are looked at together: one such group in seven has a change where one element in 100 has."""


class Changes(NamedTuple):
    """What differs."""

    places_K: Tensor
    """Ascending; int32 where every place of the tensor fits into it, else int64."""
    values_K: Tensor
    """The new elements there."""


def changes(now_N: Tensor, before_N: Tensor) -> Changes:
    """Return where two flat, contiguous tensors of one type differ, and the elements of the first one there.

    Bits are compared: a NaN is equal to itself, minus zero is not equal to zero. On a CPU a block that is
    the same costs its comparison alone; one thread does it: two threads over blocks wait for one another.
    """
    now_bits_N, before_bits_N = _bits(now_N), _bits(before_N)
    fits = now_N.numel() <= torch.iinfo(torch.int32).max
    if now_N.device.type != "cpu":
        places_K = (now_bits_N != before_bits_N).nonzero().squeeze(1)
        return Changes(places_K.to(torch.int32) if fits else places_K, now_N.index_select(0, places_K))
    flat: Any = now_bits_N.numpy()
    found = [(np.empty(0, np.int64), flat[:0]), *_blocks(flat, before_bits_N.numpy())]
    places: Any = np.concatenate(
        [places for places, _ in found], dtype=np.int32 if fits else np.int64, casting="same_kind"
    )
    values = np.concatenate([values for _, values in found])
    return Changes(torch.from_numpy(places), torch.from_numpy(values).view(now_N.dtype))


def _blocks(now_N: Any, before_N: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the places and values of each block that differs."""
    per_word = _WORD_BYTES // now_N.itemsize
    cut = now_N.size // per_word * per_word
    now_W, before_W = now_N[:cut].view(np.int64), before_N[:cut].view(np.int64)
    group = min(_WORD_BYTES, max(1, _GROUP // per_word))
    flags_C = np.zeros(-(-min(_BLOCK_WORDS, now_W.size) // group) * group, bool)
    for first in range(0, now_W.size, _BLOCK_WORDS):
        now_C, before_C = now_W[first : first + _BLOCK_WORDS], before_W[first : first + _BLOCK_WORDS]
        np.not_equal(now_C, before_C, out=flags_C[: now_C.size])
        flags_C[now_C.size :] = False
        count = np.count_nonzero(flags_C)
        if not count:
            continue
        if 2 * count > now_C.size:
            places, values = _different(now_C.view(now_N.dtype), before_C.view(now_N.dtype))
        else:
            words = _true(flags_C, group)
            members, values = _different(
                now_C.take(words).view(now_N.dtype), before_C.take(words).view(now_N.dtype)
            )
            places = _within(words, members, per_word)
        places += first * per_word
        yield places, values
    places, values = _different(now_N[cut:], before_N[cut:])
    yield places + cut, values


def _different(now_N: Any, before_N: Any) -> tuple[Any, Any]:
    places = np.flatnonzero(now_N != before_N)
    return places, now_N.take(places)


def _true(flags: Any, group: int) -> Any:
    """Return the indices of what is true, as `np.flatnonzero` does, in half its time where few are.

    It takes 20 ns and more for each index where less than a tenth is true, else 0.4 ns an element: dense enough are the
    groups that have one, and the flags in these.

    Args:
        flags: of a length that `group` divides.
        group: 1, 2, 4 or 8 flags.
    """
    by_group = flags.view(f"i{group}")
    groups = np.flatnonzero(by_group != 0)
    return _within(groups, np.flatnonzero(by_group.take(groups).view(bool)), group)


def _within(groups: Any, members: Any, size: int) -> Any:
    """Return the places of members of groups.

    Args:
        groups: number of each group.
        members: number m is the place m % size of `groups[m // size]`; written over.
        size: of a group, a power of two.
    """
    places = groups.take(members >> (size.bit_length() - 1))
    places *= size
    members &= size - 1
    places += members
    return places


def _bits(flat_N: Tensor) -> Tensor:
    """Return the elements as integers."""
    return flat_N.detach().view(_BITS[flat_N.element_size()])
