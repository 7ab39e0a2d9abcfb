"""Cuts the log of a resumed run: steps after the checkpoint run again, so their old entries are removed."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from refrl.directories import naming

_ROWS = re.compile(r"\w+_step(\d+)\.jsonl")
_FRAME = struct.Struct("<QI")
"""Length of a record and the checksum of the length; the record and its own checksum follow (TFRecord)."""
_CHECKSUM_BYTES = 4


def cut_log(directory: Path, after: int) -> None:
    """Restore the log to the end of a step, so that readers see one series without repeated steps.

    A half-written record of a killed run is removed as well. Each file is replaced atomically.

    Args:
        directory: `logger.log_dir`.
        after: the last step to keep; -1 keeps none.
    """
    for path in directory.glob("*.jsonl"):
        rows = _ROWS.fullmatch(path.name)
        if rows is not None and int(rows[1]) > after:
            path.unlink()
    for path in (directory / "tensorboard").glob("events.out.tfevents.*"):
        _cut_events(path, after)


def _cut_events(path: Path, after: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    whole = path.read_bytes()
    kept = []
    for frame in _frames(whole):
        event = Event.FromString(frame[_FRAME.size : -_CHECKSUM_BYTES])
        if event.HasField("file_version") or event.step <= after:
            kept.append(frame)
    left = b"".join(kept)
    if left == whole:
        return
    temporary = path.with_name(f".{path.name}.tmp")
    with naming(path):
        temporary.write_bytes(left)
        temporary.replace(path)


def _frames(data: bytes) -> Iterator[bytes]:
    """Yield the complete records of an event file with their framing."""
    start = 0
    while start + _FRAME.size <= len(data):
        length, _ = _FRAME.unpack_from(data, start)
        end = start + _FRAME.size + length + _CHECKSUM_BYTES
        if end > len(data):
            return
        yield data[start:end]
        start = end
