"""Framing: every whole record is found, and every byte that is in none is accounted for."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
from pathlib import Path

import pytest
from tensorboard.summary.writer.record_writer import RecordWriter, masked_crc32c

from seatrial.evidence.readers.tensorboard.tfrecord import FOOTER_BYTES, HEADER_BYTES, Loss, blocks

SMALL = 128 << 10


def frame(records: list[bytes]) -> bytes:
    stream = io.BytesIO()
    writer = RecordWriter(stream)
    for record in records:
        writer.write(record)
    return stream.getvalue()


def scan(path: Path, block_bytes: int = SMALL) -> tuple[list[bytes], list[Loss]]:
    found: list[bytes] = []
    losses: list[Loss] = []
    for block in blocks(path, block_bytes):
        pairs = zip(block.starts.tolist(), block.lengths.tolist(), strict=True)
        found += [block.buffer[start : start + length].tobytes() for start, length in pairs]
        losses += block.losses
    return found, losses


def put(tmp_path: Path, blob: bytes) -> Path:
    path = tmp_path / "records"
    path.write_bytes(blob)
    return path


@pytest.mark.parametrize("seed", range(5))
def test_records_of_all_lengths_over_block_borders(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    lengths = [generator.choice([0, 1, 40, 41, 300, 65535, 65536, 70000, 200_000]) for _ in range(40)]
    records = [generator.randbytes(length) for length in lengths]
    found, losses = scan(put(tmp_path, frame(records)))
    assert found == records
    assert losses == []


def test_an_event_file_inside_a_record_is_not_taken_for_records(tmp_path: Path) -> None:
    inner = frame([b"inner one", b"inner two" * 20])
    records = [b"first", inner, inner * 3, b"last"]
    assert scan(put(tmp_path, frame(records))) == (records, [])


def test_truncation_at_every_byte(tmp_path: Path) -> None:
    records = [b"a" * 20, b"b" * 31, b"c" * 5]
    blob = frame(records)
    ends = [36, 36 + 47, 36 + 47 + 21]
    for size in range(len(blob)):
        found, losses = scan(put(tmp_path, blob[:size]))
        whole = sum(end <= size for end in ends)
        rest = size - ([0, *ends][whole])
        assert found == records[:whole], size
        assert losses == ([Loss(size - rest, rest, truncated=True)] if rest else []), size


@pytest.mark.parametrize("place", range(HEADER_BYTES))
def test_a_damaged_header_loses_its_record_only(tmp_path: Path, place: int) -> None:
    records = [bytes([65 + index]) * (20 + index) for index in range(6)]
    blob = bytearray(frame(records))
    third = sum(HEADER_BYTES + len(record) + FOOTER_BYTES for record in records[:2])
    blob[third + place] ^= 0x10
    found, losses = scan(put(tmp_path, bytes(blob)))
    assert found == records[:2] + records[3:]
    assert losses == [Loss(third, HEADER_BYTES + len(records[2]) + FOOTER_BYTES, truncated=False)]


@pytest.mark.parametrize("hole", [1, 1000, SMALL, 3 * SMALL + 7])
def test_reading_goes_on_behind_a_hole_of_any_size(tmp_path: Path, hole: int) -> None:
    before, after = [b"x" * 50] * 100, [b"y" * 60] * 100
    blob = frame(before) + b"\xff" * hole + frame(after)
    found, losses = scan(put(tmp_path, blob))
    assert found == before + after
    assert losses == [Loss(len(frame(before)), hole, truncated=False)]


def test_a_tail_of_zeros_is_lost_and_said(tmp_path: Path) -> None:
    """A machine that loses power leaves pages of zeros."""
    whole = frame([b"x" * 50] * 3)
    assert scan(put(tmp_path, whole + bytes(4096))) == (
        [b"x" * 50] * 3,
        [Loss(len(whole), 4096, truncated=False)],
    )


@pytest.mark.parametrize("length", [1 << 20, 1 << 40, (1 << 63) + 5, (1 << 64) - 1])
def test_a_huge_declared_length_takes_no_memory(tmp_path: Path, length: int) -> None:
    header = struct.pack("<Q", length)
    path = put(tmp_path, frame([b"x" * 50]) + header + struct.pack("<I", masked_crc32c(header)) + b"rest")
    scan(path)  # The tables are made once.
    tracemalloc.start()
    found, losses = scan(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [b"x" * 50]
    assert losses == [Loss(66, 16, truncated=True)]
    assert peak < 1 << 20
