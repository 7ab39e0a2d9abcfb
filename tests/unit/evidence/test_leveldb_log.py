"""LevelDB's framing as W&B writes it; the writer here follows the format's description."""

from __future__ import annotations

import random
import struct
import zlib

import pytest

from seatrial.evidence.readers.wandb import BLOCK_BYTES, Loss, Record, records

HEADER = b":W&B\xe1\xbe\x00"


def write(payloads: list[bytes]) -> bytes:
    blob = bytearray(HEADER)
    for payload in payloads:
        rest, first = payload, True
        while first or rest:
            room = BLOCK_BYTES - len(blob) % BLOCK_BYTES
            if room < 7:
                blob += bytes(room)
                room = BLOCK_BYTES
            part, rest = rest[: room - 7], rest[room - 7 :]
            kind = (1 if not rest else 2) if first else (4 if not rest else 3)
            first = False
            blob += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
    return bytes(blob)


def read(blob: bytes) -> tuple[list[bytes], list[Loss]]:
    items = list(records(blob, len(HEADER)))
    return [item.data for item in items if isinstance(item, Record)], [
        i for i in items if isinstance(i, Loss)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_records_split_over_blocks(seed: int) -> None:
    generator = random.Random(seed)
    payloads = [
        generator.randbytes(generator.choice([1, 100, 32754, 32761, 40_000, 100_000])) for _ in range(20)
    ]
    assert read(write(payloads)) == (payloads, [])


@pytest.mark.parametrize("cut", [1, 5, 7, 50])
def test_a_cut_file(cut: int) -> None:
    payloads = [bytes([index]) * 60 for index in range(10)]
    blob = write(payloads)
    whole = len(HEADER) + 67 * 9
    found, losses = read(blob[: whole + cut])
    assert found == payloads[:9]
    assert losses == [Loss(whole, cut, truncated=True)]


def test_a_record_cut_between_two_blocks() -> None:
    blob = write([b"x" * 10, b"y" * 50_000])[:BLOCK_BYTES]
    found, losses = read(blob)
    assert found == [b"x" * 10]
    assert losses == [Loss(24, BLOCK_BYTES - 24, truncated=True)]


def test_after_a_flipped_bit_reading_goes_on_with_the_next_block() -> None:
    payloads = [bytes([index % 256]) * 1000 for index in range(200)]
    blob = bytearray(write(payloads))
    blob[3 * BLOCK_BYTES + 5000] ^= 1
    found, losses = read(bytes(blob))
    assert not any(loss.truncated for loss in losses)
    lost = [payload for payload in payloads if payload not in found]
    assert 20 < len(lost) < 40
    assert found == [payload for payload in payloads if payload in found]
