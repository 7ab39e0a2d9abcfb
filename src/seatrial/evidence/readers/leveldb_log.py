"""LevelDB's log framing, as W&B writes its offline files: blocks of 32 KiB, records split over them.

A piece is: CRC-32 of type and data (4 bytes), length (2 bytes), type (1: whole, 2: first, 3: middle, 4: last), data.
W&B takes the plain CRC-32 of zlib where LevelDB takes the masked CRC-32C.
Source: google/leveldb doc/log_format.md; wandb/wandb core/pkg/leveldb/record.go.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

BLOCK_BYTES = 32768
_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class Record(NamedTuple):
    """A record whose checksums are right."""

    offset: int
    data: bytes


class Loss(NamedTuple):
    """Bytes that hold no whole record."""

    offset: int
    size: int
    truncated: bool
    """True where the file ends inside a record."""


def records(blob: bytes, start: int) -> Iterator[Record | Loss]:
    """Yield the records from byte `start`, and a `Loss` for each stretch that is damaged.

    After damage reading goes on with the next block: the framing begins anew there.
    """
    position = start
    first, parts = 0, list[bytes]()
    while position < len(blob):
        room = BLOCK_BYTES - position % BLOCK_BYTES
        if room < _HEADER.size:
            position += room
            continue
        piece = _piece(blob, position)
        if piece is None:
            end = min(position + room, len(blob))
            begin = first if parts else position
            yield Loss(begin, end - begin, truncated=end == len(blob) and _runs_over(blob, position))
            parts, position = [], end
            continue
        kind, data = piece
        if (kind in (_MIDDLE, _LAST)) != bool(parts):
            # The beginning of this record, or the end of the last one, lies in a block that was lost.
            begin = first if parts else position
            yield Loss(begin, position - begin if parts else _HEADER.size + len(data), truncated=False)
            parts = []
        if kind in (_WHOLE, _FIRST):
            first, parts = position, [data]
        elif parts:
            parts.append(data)
        if parts and kind in (_WHOLE, _LAST):
            yield Record(first, b"".join(parts))
            parts = []
        position += _HEADER.size + len(data)
    if parts:
        yield Loss(first, len(blob) - first, truncated=True)


def _piece(blob: bytes, position: int) -> tuple[int, bytes] | None:
    """Return type and data of a piece, or None when it is not whole or its checksum is wrong."""
    if position + _HEADER.size > len(blob):
        return None
    crc, length, kind = _HEADER.unpack_from(blob, position)
    begin = position + _HEADER.size
    data = blob[begin : begin + length]
    room = BLOCK_BYTES - position % BLOCK_BYTES - _HEADER.size
    if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or length > room or len(data) < length:
        return None
    return (kind, data) if zlib.crc32(data, zlib.crc32(bytes([kind]))) == crc else None


def _runs_over(blob: bytes, position: int) -> bool:
    """Say whether the piece at a place declares more bytes than the file has left."""
    if position + _HEADER.size > len(blob):
        return True
    return position + _HEADER.size + int(_HEADER.unpack_from(blob, position)[1]) > len(blob)
