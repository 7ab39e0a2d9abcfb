"""Random bytes, and random damage to valid files; a seed gives the same bytes on any machine."""

from __future__ import annotations

import random
import re

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


ODD_VALUES = [
    b"NaN", b"nan", b"null", b"Infinity", b"-inf", b"1e400", b"-1e-300", b'"x"', b"true", b"0", b"-0.0", b"1" * 400,
    b"[]", b"[1, 2]", b"{}", b"", b"\\ud800", b"9223372036854775808",
]  # fmt: skip
_NUMBER = re.compile(rb"-?\d+\.?\d*(?:[eE][-+]?\d+)?")


def odd_values(generator: random.Random, valid: bytes) -> bytes:
    """Return a valid text with some of its numbers replaced by odd values: in one place, or in one share of all."""
    share = generator.choice([0.0, 0.01, 0.2, 1.0])
    value = generator.choice(ODD_VALUES)
    once = generator.randrange(max(1, len(valid)))

    def change(found: re.Match[bytes]) -> bytes:
        near = found.start() <= once < found.start() + 40
        return value if near or generator.random() < share else found[0]

    return _NUMBER.sub(change, valid)


def truncate(generator: random.Random, valid: bytes) -> bytes:
    """Return the beginning of a valid file, or the file without a piece in its middle."""
    at = generator.randrange(len(valid) + 1)
    return valid[:at] if generator.random() < 0.7 else valid[:at] + valid[at + generator.randint(1, 5000) :]
