"""TFRecord framing, the container of TensorBoard event files, read in blocks, and its checksum.

A record is: length (8 bytes, little endian), masked CRC-32C of these 8 bytes, data, masked CRC-32C of the data.
Headers are found over a whole block at once: a length below 65536 shows as six zero bytes, and its checksum
confirms it. Only the chain of lengths from the start of the file makes a header a header, so bytes inside a record
that look like one are never taken for one; after damage, the chain continues at the next header with a valid record.

CRC is affine: the CRCs of two messages of one length differ by the xor of what each differing byte contributes at its
place. Where records have all bytes but a few in common, one CRC is computed in full and the others by table lookups.
Source: tensorflow/core/lib/io/record_writer.h; Castagnoli polynomial, reflected; TensorFlow's mask
(tensorflow/core/lib/hash/crc32c.h).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

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


HEADER_BYTES = 12
FOOTER_BYTES = 4
BLOCK_BYTES = 2 << 20

Indices = npt.NDArray[np.int64]


class Loss(NamedTuple):
    """Bytes of a file that are not whole records."""

    offset: int
    size: int
    truncated: bool
    """True where the file ends inside a record; False where bytes are wrong."""


@dataclass(frozen=True)
class Block:
    """Whole records of one stretch of a file; the checksums of their data are not verified yet."""

    buffer: Bytes
    offset: int
    """Where the buffer starts in the file."""
    starts: Indices
    """Where the data of each record starts in the buffer."""
    lengths: Indices
    """Bytes of data of each record."""
    losses: list[Loss]


def is_header(head: bytes) -> bool:
    """Say whether bytes begin with the header of a record."""
    return len(head) >= HEADER_BYTES and masked_crc(head[:8]) == int.from_bytes(head[8:12], "little")


def blocks(path: Path, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Yield the records of a file, block by block, in order.

    Memory is bounded by the block and the longest whole record, not by the lengths that headers declare.
    `block_bytes` is at least 128 KiB, so that every record below 64 KiB fits into a block.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        offset, wanted, lost_from = 0, block_bytes, None
        while offset < size:
            buffer = _read(stream, offset, min(wanted, size - offset))
            if len(buffer) < min(wanted, size - offset):
                size = offset + len(buffer)
            walk = _Walk(buffer, offset, size, lost_from)
            walk.run()
            yield walk.block()
            if walk.at_end:
                return
            offset, lost_from = offset + walk.used, walk.lost_from
            wanted = max(block_bytes, walk.needed)


def _read(stream: BinaryIO, offset: int, size: int) -> Bytes:
    stream.seek(offset)
    return np.frombuffer(stream.read(size), dtype=np.uint8)


@functools.cache
def _crc_of_lengths() -> Words:
    return masked_crc_of_lengths()


class _Walk:
    """Follows the chain of records through one buffer of a file."""

    def __init__(self, buffer: Bytes, offset: int, size: int, lost_from: int | None) -> None:
        self.buffer = buffer
        self.offset = offset
        self.size = size
        self.lost_from = lost_from
        """Place in the file where the chain broke, while it is broken."""
        self.at_end = offset + len(buffer) >= size
        self.used = 0
        """Bytes of the buffer that are done with."""
        self.needed = 0
        """Bytes that the next record takes, when it does not end in this buffer."""
        self.headers, self.short_lengths = _find_headers(buffer)
        self.ends = self.headers + self.short_lengths + (HEADER_BYTES + FOOTER_BYTES)
        # Headers that the next one does not follow at once: the chain jumps there, or breaks.
        self.jumps = np.flatnonzero(self.ends[:-1] != self.headers[1:])
        self.starts: list[Indices] = []
        self.lengths: list[Indices] = []
        self.losses: list[Loss] = []

    def block(self) -> Block:
        """Return what was found."""
        return Block(self.buffer, self.offset, _join(self.starts), _join(self.lengths), self.losses)

    def run(self) -> None:
        """Follow the chain from the start of the buffer to the last record that ends in it."""
        while self.used < len(self.buffer):
            if self.lost_from is not None and not self._rejoin():
                break
            before = self.used
            index = int(np.searchsorted(self.headers, self.used))
            if index < len(self.headers) and self.headers[index] == self.used:
                self._take_run(index)
            else:
                self._take_one()
            if self.used == before and self.lost_from is None:
                break
        if self.at_end and self.used < len(self.buffer) and self.lost_from is None:
            self._lose(self.offset + self.used, self.size, truncated=True)
        elif self.at_end and self.lost_from is not None:
            self._lose(self.lost_from, self.size, truncated=False)

    def _take_run(self, index: int) -> None:
        """Take the records from header `index` to the next jump of the chain."""
        jump = int(np.searchsorted(self.jumps, index))
        last = int(self.jumps[jump]) if jump < len(self.jumps) else len(self.headers) - 1
        while last >= index and self.ends[last] > len(self.buffer):
            last -= 1
        if last < index:
            self._wait_for(int(self.ends[index]))
            return
        self.starts.append(self.headers[index : last + 1] + HEADER_BYTES)
        self.lengths.append(self.short_lengths[index : last + 1])
        self.used = int(self.ends[last])

    def _take_one(self) -> None:
        """Take a record of 64 KiB and more, which the search over the block does not see, or notice damage."""
        head = self.buffer[self.used : self.used + HEADER_BYTES].tobytes()
        if len(head) < HEADER_BYTES:
            return
        if not is_header(head):
            self.lost_from = self.offset + self.used
            return
        length = int.from_bytes(head[:8], "little")
        end = self.used + HEADER_BYTES + length + FOOTER_BYTES
        if end > len(self.buffer):
            self._wait_for(end)
            return
        self.starts.append(np.array([self.used + HEADER_BYTES], dtype=np.int64))
        self.lengths.append(np.array([length], dtype=np.int64))
        self.used = end

    def _wait_for(self, end: int) -> None:
        """Request a longer buffer, unless the record ends beyond the file."""
        self.needed = end - self.used
        self.at_end = self.at_end or self.offset + end > self.size

    def _rejoin(self) -> bool:
        """Go to the next header whose record is right; if there is none, to what the next block must see."""
        assert self.lost_from is not None
        for index in range(int(np.searchsorted(self.headers, self.used)), len(self.headers)):
            start, end = int(self.headers[index]), int(self.ends[index])
            if end > len(self.buffer) and not self.at_end:
                self.used = start
                return False
            if end <= len(self.buffer) and _is_whole(self.buffer, start, end):
                self._lose(self.lost_from, self.offset + start, truncated=False)
                self.lost_from = None
                self.used = start
                return True
        # The last bytes may be the first ones of a header.
        self.used = (
            len(self.buffer) if self.at_end else max(self.used + 1, len(self.buffer) - HEADER_BYTES + 1)
        )
        return False

    def _lose(self, start: int, end: int, *, truncated: bool) -> None:
        self.losses.append(Loss(start, end - start, truncated))


def _find_headers(buffer: Bytes) -> tuple[Indices, Indices]:
    """Return the places of headers with lengths below 65536, and these lengths."""
    zero = buffer == 0
    two = zero[:-1] & zero[1:]
    six = two[:-4] & two[2:-2] & two[4:]
    places = np.flatnonzero(six) - 2
    places = places[(places >= 0) & (places <= len(buffer) - HEADER_BYTES)]
    lengths = buffer[places].astype(np.int64) | (buffer[places + 1].astype(np.int64) << 8)
    right = words_at(buffer, places + 8) == _crc_of_lengths()[lengths]
    return places[right], lengths[right]


def words_at(buffer: Bytes, places: Indices) -> Words:
    """Return the little-endian 4-byte words at any places of a buffer."""
    if len(buffer) < 4:
        return np.zeros(0, dtype=np.uint32)
    window: Words = np.ndarray((len(buffer) - 3,), dtype="<u4", buffer=buffer, strides=(1,))
    return window[places]


def _is_whole(buffer: Bytes, start: int, end: int) -> bool:
    data = buffer[start + HEADER_BYTES : end - FOOTER_BYTES].tobytes()
    return masked_crc(data) == int.from_bytes(buffer[end - FOOTER_BYTES : end].tobytes(), "little")


def _join(parts: list[Indices]) -> Indices:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
