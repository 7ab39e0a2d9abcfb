"""W&B's offline files (`run-<id>.wandb`), read through the wandb package's own protobufs.

Several files with one run id are attempts of that run; different runs are kept apart by their id before the tag.
W&B's own columns (`_step`, `_runtime`, `_timestamp`, `_wandb`) are the axes and not tags. The file has a header of
7 bytes: `:W&B`, magic, version.
Source: wandb/wandb wandb/proto/wandb_internal.proto (Record, HistoryRecord).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.evidence.readers import jsonl
from seatrial.evidence.readers.assemble import assemble_rows
from seatrial.evidence.readers.leveldb_log import Loss, records
from seatrial.evidence.readers.numbers import decode, decode_step
from seatrial.evidence.readers.rows import RowLog
from seatrial.evidence.runlog import RunLog

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
