"""CRC-32C, against its published check value and tensorboard's own implementation."""

from __future__ import annotations

import numpy as np
import pytest
from tensorboard.summary.writer.record_writer import masked_crc32c

from seatrial.evidence.readers.tensorboard.tfrecord import (
    add_byte,
    crc,
    mask,
    masked_crc,
    masked_crc_of_lengths,
)


def test_the_published_check_value() -> None:
    assert crc(b"123456789") == 0xE3069283


@pytest.mark.parametrize("data", [b"", b"\x00", b"seatrial", bytes(range(256)) * 3])
def test_masked_as_tensorboard_does(data: bytes) -> None:
    assert masked_crc(data) == masked_crc32c(data)


def test_lengths() -> None:
    table = masked_crc_of_lengths()
    for length in (0, 1, 40, 255, 256, 65535):
        assert table[length] == masked_crc32c(length.to_bytes(8, "little"))


@pytest.mark.parametrize("places", [[0], [5], [0, 3, 11], list(range(12))])
def test_bytes_added_to_a_blank_message(places: list[int]) -> None:
    generator = np.random.default_rng(0)
    rows = np.tile(generator.integers(0, 256, 12, dtype=np.uint8), (50, 1))
    blank = rows.copy()
    blank[:, places] = 0
    rows[:, places] = generator.integers(0, 256, (50, len(places)), dtype=np.uint8)
    crcs = np.full(50, crc(blank[0].tobytes()), dtype=np.uint32)
    for place in places:
        add_byte(crcs, rows[:, place], 11 - place)
    assert mask(crcs).tolist() == [masked_crc32c(row.tobytes()) for row in rows]
