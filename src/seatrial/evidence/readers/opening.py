"""Opens text logs in any wrapping: gzip, a byte-order mark, UTF-16."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from seatrial.errors import BlockedError

GZIP = b"\x1f\x8b"
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
MAX_BYTES = 2 << 30
"""Largest text that is unpacked whole."""
_PART_BYTES = 1 << 20


def open_text(path: Path) -> BinaryIO:
    """Open a log as bytes of UTF-8 text without a byte-order mark.

    Raises:
        BlockedError: compressed data is damaged at once, or the text is too large to be converted.
        OSError: the file cannot be read.
    """
    stream: BinaryIO = path.open("rb")
    if stream.read(2) == GZIP:
        stream.close()
        stream = cast("BinaryIO", gzip.GzipFile(path))
    try:
        stream.seek(0)
        mark = stream.read(3)
        if mark == codecs.BOM_UTF8:
            return stream
        stream.seek(0)
        if mark[:2] not in _UTF16:
            return stream
        with stream:
            raw = _limited(stream)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        stream.close()
        raise BlockedError(f"{path}: damaged gzip data ({error}); copy it again") from error
    if len(raw) > MAX_BYTES:
        raise BlockedError(f"{path}: UTF-16 text of more than {MAX_BYTES >> 30} GiB; convert it to UTF-8")
    return io.BytesIO(raw.decode(_UTF16[mark[:2]], errors="replace").encode())


def read_text(path: Path) -> bytes:
    """Return a whole log as bytes of UTF-8 text.

    Raises:
        BlockedError: compressed data is damaged, or it is too large.
        OSError: the file cannot be read.
    """
    with open_text(path) as stream:
        try:
            raw = _limited(stream)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BlockedError(f"{path}: damaged gzip data ({error}); copy it again") from error
    if len(raw) > MAX_BYTES:
        raise BlockedError(f"{path}: more than {MAX_BYTES >> 30} GiB of text; name a smaller log")
    return raw


def _limited(stream: BinaryIO) -> bytes:
    """Return the content of a stream, cut a little beyond the allowed size."""
    parts, size = [], 0
    while size <= MAX_BYTES and (part := stream.read(_PART_BYTES)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def head_of(path: Path, size: int) -> bytes:
    """Return the first bytes of a file, unpacked where it is packed text.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as stream:
        raw = stream.read(size)
    if raw[:2] != GZIP and raw[:2] not in _UTF16 and raw[:3] != codecs.BOM_UTF8:
        return raw
    try:
        with open_text(path) as stream:
            return stream.read(size)
    except (BlockedError, EOFError, gzip.BadGzipFile, zlib.error):
        return raw


def suffix_of(path: Path) -> str:
    """Return the ending of a name, that of the text inside where it is packed: `.jsonl` of `log.jsonl.gz`."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
