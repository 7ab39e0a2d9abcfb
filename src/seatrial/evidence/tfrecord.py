"""TFRecord framing, the container of TensorBoard event files.

A record is: length (8 bytes, little endian), masked CRC-32C of these 8 bytes, data, masked CRC-32C of the data.
Source: tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c

HEADER_BYTES = 12
FOOTER_BYTES = 4
_MASK_DELTA = 0xA282EAD8


class Record(NamedTuple):
    """One record that is whole and whose checksums are right."""

    offset: int
    data: bytes


class Loss(NamedTuple):
    """Bytes that could not be read."""

    offset: int
    what: str


def masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C that a TFRecord holds for `data`."""
    crc = int(google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def is_header(head: bytes) -> bool:
    """Say whether bytes begin with the header of a record."""
    return len(head) >= HEADER_BYTES and masked_crc(head[:8]) == struct.unpack_from("<I", head, 8)[0]


def iterate(path: Path) -> Iterator[Record | Loss]:
    """Yield the records of a file in order, and a `Loss` for everything that is not a whole record."""
    blob = path.read_bytes()
    position = 0
    while position < len(blob):
        if len(blob) - position < HEADER_BYTES:
            yield Loss(position, f"{len(blob) - position} bytes of a record")
            return
        if not is_header(blob[position : position + HEADER_BYTES]):
            yield Loss(position, f"record header is damaged: {len(blob) - position} bytes could not be read")
            return
        (length,) = struct.unpack_from("<Q", blob, position)
        end = position + HEADER_BYTES + length + FOOTER_BYTES
        if end > len(blob):
            yield Loss(position, f"{len(blob) - position} bytes of a record")
            return
        data = blob[position + HEADER_BYTES : end - FOOTER_BYTES]
        if masked_crc(data) == struct.unpack_from("<I", blob, end - FOOTER_BYTES)[0]:
            yield Record(position, data)
        else:
            yield Loss(position, f"checksum is wrong: a record of {length} bytes was lost")
        position = end
