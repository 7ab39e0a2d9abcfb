"""W&B's offline files (`run-<id>.wandb`), read with the wandb package's own protobufs.

Several files with one run id are attempts of that run; tags of different runs are prefixed with the run id. W&B's own
columns (`_step`, `_runtime`, `_timestamp`, `_wandb`) are axes, not tags. The file has a header of 7 bytes (`:W&B`,
magic, version), then the framing of LevelDB's log: blocks of 32 KiB, records split over them. A piece of a record is:
CRC-32 of type and data (4 bytes), length (2 bytes), type (1: whole, 2: first, 3: middle, 4: last), data. W&B uses the
plain CRC-32 of zlib where LevelDB uses the masked CRC-32C.
Source: wandb/wandb wandb/proto/wandb_internal.proto (Record, HistoryRecord), core/pkg/leveldb/record.go;
google/leveldb doc/log_format.md.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.errors import BlockedError
from seatrial.evidence.readers import jsonl
from seatrial.evidence.readers.points import decode, decode_step
from seatrial.evidence.readers.rows import RowLog, assemble_rows
from seatrial.evidence.runlog import RunLog

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

    After damage reading continues with the next block, where the framing starts again.
    """
    position = start
    first, parts = 0, list[bytes]()
    while position < len(blob):
        remaining = BLOCK_BYTES - position % BLOCK_BYTES
        if remaining < _HEADER.size:
            position += remaining
            continue
        piece = _piece(blob, position)
        if piece is None:
            end = min(position + remaining, len(blob))
            begin = first if parts else position
            yield Loss(begin, end - begin, truncated=end == len(blob) and _runs_over(blob, position))
            parts, position = [], end
            continue
        kind, data = piece
        if (kind in (_MIDDLE, _LAST)) != bool(parts):
            # The beginning of this record, or the end of the last one, was in a block that is lost.
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
    remaining = BLOCK_BYTES - position % BLOCK_BYTES - _HEADER.size
    if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or length > remaining or len(data) < length:
        return None
    return (kind, data) if zlib.crc32(data, zlib.crc32(bytes([kind]))) == crc else None


def _runs_over(blob: bytes, position: int) -> bool:
    """Say whether the piece at a place declares more bytes than the file has left."""
    if position + _HEADER.size > len(blob):
        return True
    return position + _HEADER.size + int(_HEADER.unpack_from(blob, position)[1]) > len(blob)


NAME = "W&B"
PRIORITY = 90

MAGIC = b":W&B"
HEADER_BYTES = 7
_OWN = ("_step", "_runtime", "_timestamp", "_wandb")

Parse = Callable[[bytes], Any]


def claims(file: Path, head: bytes) -> bool:
    """Say whether a file is a W&B offline file; one that is called so and holds something else is damaged."""
    return head.startswith(MAGIC) or file.suffix == ".wandb"


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read W&B offline files.

    Raises:
        BlockedError: wandb is not installed, or no record could be read.
        OSError: a file cannot be read.
    """
    parse = _parser(paths[0])
    logs = [_read(path, parse) for path in paths]
    return assemble_rows(logs, tags, lanes_are_runs=True)


def _parser(path: Path) -> Parse:
    """Return wandb's parser of records: None for bytes that are none."""
    try:
        from google.protobuf.message import DecodeError
        from wandb.proto import wandb_internal_pb2
    except ImportError as error:
        raise BlockedError(
            f"{path}: reading W&B files needs the wandb package ({error}); install it with "
            "`pip install 'seatrial[readers]'`, or export the run as CSV"
        ) from error

    def parse(data: bytes) -> Any:
        try:
            return wandb_internal_pb2.Record.FromString(data)
        except DecodeError:
            return None

    return parse


def _read(path: Path, parse: Parse) -> RowLog:
    blob = path.read_bytes()
    log = RowLog(str(path), separator=".")
    if not blob.startswith(MAGIC) or len(blob) < HEADER_BYTES:
        log.lose(0, "the file is empty" if not blob else "the file does not begin as a W&B file")
        return log
    run_id, step = path.stem.removeprefix("run-"), None
    for item in records(blob, HEADER_BYTES):
        if isinstance(item, Loss):
            _lose(log, item, step)
            continue
        record = parse(item.data)
        if record is None:
            _lose(log, Loss(item.offset, len(item.data), truncated=False), step)
        elif record.HasField("run"):
            run_id = record.run.run_id or run_id
        elif record.HasField("history"):
            step = _add(log, record.history, item.offset, run_id)
        else:
            # A run that logged nothing is a run: its log is empty, not unreadable.
            log.num_rows += 1
    return log


def _lose(log: RowLog, loss: Loss, step: int | None) -> None:
    after = "before the first step" if step is None else f"after step {step}"
    what = f"truncated {after}" if loss.truncated else f"damaged {after}"
    log.lose(loss.offset, f"{what}: {loss.size} bytes hold no whole record", is_cut=loss.truncated)


def _add(log: RowLog, history: Any, offset: int, run_id: str) -> int | None:
    """Add one history record; return its step."""
    metrics: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for item in history.item:
        keys = list(item.nested_key) or [item.key]
        value = jsonl.parse(item.value_json)
        if value is None and item.value_json.strip() != "null":
            log.lose(offset, f"{'.'.join(keys)}: the value {item.value_json[:40]!r} is not JSON")
        elif keys[0] in _OWN:
            own[keys[0]] = value
        else:
            _put(metrics, keys, value)
    step = decode_step(own.get("_step", history.step.num))
    if step is None:
        log.lose(offset, f"a record has the step {str(own.get('_step'))[:40]!r}, which is no whole number")
        return None
    time = decode(own.get("_timestamp"))
    log.add(
        step, metrics, line=offset, wall_time=None if time is None or time.null else time.value, lane=run_id
    )
    return step


def _put(metrics: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set a nested value, so that histograms and media show as the objects that they are."""
    for key in keys[:-1]:
        inner = metrics.setdefault(key, {})
        if not isinstance(inner, dict):
            inner = metrics[key] = {}
        metrics = inner
    metrics[keys[-1]] = value
