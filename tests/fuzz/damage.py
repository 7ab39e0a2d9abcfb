"""Random bytes, and random damage to valid files; a seed gives the same bytes on any machine."""

from __future__ import annotations

import random

ODD_PIECES = [
    b"1e999", b"-" * 50, b"9" * 5000, b"[" * 3000, b'{"a":' * 2000, b"NaN", b"\x00" * 64, b"\xff" * 9, b'"', b"\n",
    b"null", b"1.5", b"-1", b"9223372036854775808", b"\xe2\x80\xae", b",", b"}", b"\r", b"\xef\xbb\xbf", b"0x1",
]  # fmt: skip


def random_bytes(generator: random.Random, valid: bytes) -> bytes:
    """Return random bytes, often behind the first bytes of a valid file."""
    size = generator.choice([0, 1, 7, 12, 16, 50, 500, 5000])
    head = valid[: generator.choice([0, 0, 4, 16, 100])]
    alphabet = generator.choice([None, b'{}[]",:0123456789eE+-.NaN \n', b"\x00\x01\xff"])
    if alphabet is None:
        return head + generator.randbytes(size)
    return head + bytes(generator.choices(alphabet, k=size))


def mutate(generator: random.Random, valid: bytes) -> bytes:
    """Return a valid file with a few changes."""
    blob = bytearray(valid)
    for _ in range(generator.randint(1, 6)):
        place = generator.randrange(len(blob) + 1)
        match generator.randrange(6):
            case 0 if place < len(blob):
                blob[place] ^= 1 << generator.randrange(8)
            case 1:
                blob[place : place + generator.randint(1, 8)] = generator.randbytes(generator.randint(1, 8))
            case 2:
                del blob[place : place + generator.choice([1, 4, 100, 10**6])]
            case 3:
                blob[place:place] = generator.choice(ODD_PIECES)
            case 4:
                other = generator.randrange(len(blob) + 1)
                blob[place:place] = blob[other : other + generator.randint(1, 300)]
            case _:
                blob[place : place + 4] = generator.choice(
                    [b"\xff\xff\xff\x7f", b"\x00\x00\x00\x00", b"\xff" * 4]
                )
    return bytes(blob)
