"""Masked CRC-32C, of one record and of many that differ in a few bytes only.

CRC is affine: two messages of one length differ in their CRC by the sum (xor) of what each differing byte
contributes at its place. So where records have all bytes but a few in common, one CRC is computed whole and the
others by looking up these few.
Source: Castagnoli polynomial, reflected; the mask is TensorFlow's (tensorflow/core/lib/hash/crc32c.h).
"""

from __future__ import annotations

import google_crc32c
import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]


def crc(data: bytes) -> int:
    """Return the CRC-32C of `data`."""
    return int(google_crc32c.value(data))


def masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C that a TFRecord holds for `data`."""
    value = crc(data)
    return (((value >> 15) | (value << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def add_byte(crcs: Words, column: Bytes, distance: int) -> None:
    """Add to CRCs of messages whose byte with `distance` bytes behind it is 0 what it adds when it is `column`."""
    table = _table(distance)
    if column.max(initial=0) == column.min(initial=255):
        crcs ^= table[column[0]]
    else:
        crcs ^= table.take(column)


def mask(crcs: Words) -> Words:
    """Mask CRCs as a TFRecord does."""
    return ((crcs >> np.uint32(15)) | (crcs << np.uint32(17))) + np.uint32(_MASK_DELTA)


def masked_crc_of_lengths() -> Words:
    """Return the masked CRC-32C of each length 0..65535 written as 8 bytes, little endian."""
    return mask((_table(6)[:, None] ^ _table(7)[None, :]).ravel() ^ np.uint32(crc(bytes(8))))


def _first_table() -> Words:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), table >> np.uint32(1))
    return table.astype(np.uint32)


_tables: list[Words] = [_first_table()]


def _table(distance: int) -> Words:
    """Return what each value of a byte adds to the CRC when `distance` bytes follow it."""
    while len(_tables) <= distance:
        last = _tables[-1]
        _tables.append(_tables[0][last & np.uint32(0xFF)] ^ (last >> np.uint32(8)))
    return _tables[distance]
