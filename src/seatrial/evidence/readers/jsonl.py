"""JSON Lines: one object of metrics per line, with a step under one of the usual keys.

Source of the keys: Hugging Face (`global_step`), W&B exports (`_step`, `_timestamp`), prime-rl (`step`, `time`),
LLaMA-Factory's trainer_log.jsonl (`current_steps`), ms-swift's logging.jsonl (`global_step/max_steps`: `"1/438"`).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.evidence import quick_json
from seatrial.evidence.readers.opening import head_of, open_text, suffix_of
from seatrial.evidence.readers.points import decode_step
from seatrial.evidence.readers.rows import RowLog, assemble_rows, row_logs
from seatrial.evidence.runlog import RunLog

NAME = "JSON Lines"
PRIORITY = 20

STEP_KEYS = (
    "step",
    "global_step",
    "train/global_step",
    "_step",
    "iteration",
    "iter",
    "trainer/global_step",
    "current_steps",
    "global_step/max_steps",
)
TIME_KEYS = ("time", "_timestamp", "timestamp", "wall_time")
MAX_LINE_BYTES = 64 << 20
MAX_FIRST_LINE_BYTES = 1 << 20
_MAX_LOST_LINES = 5


class Line(NamedTuple):
    """A line that holds a JSON object."""

    number: int
    row: Mapping[str, Any]


RowAdder = Callable[[RowLog, Line], None]


def claims(file: Path, head: bytes) -> bool:
    """Say whether a file is JSON Lines: its first line is a JSON object with a step, or there are more of them."""
    if not head.lstrip().startswith(b"{"):
        return False
    if suffix_of(file) in {".jsonl", ".ndjson"}:
        return True
    row = first_object(file, head)
    if row is None or "log_history" in row:
        return False
    if head.lstrip().partition(b"\n")[2].lstrip().startswith(b"{"):
        return True
    # One object in a .json file is a summary (wandb-summary.json): its last values are no series.
    return step_key(row) is not None and suffix_of(file) != ".json"


def first_object(file: Path, head: bytes) -> dict[str, Any] | None:
    """Return the JSON object in the first line of a file, or None when that line holds none."""
    text = head.lstrip()
    if not text.startswith(b"{"):
        return None
    if b"\n" not in text:
        text = head_of(file, MAX_FIRST_LINE_BYTES).lstrip()
    row = parse(text.partition(b"\n")[0])
    return row if isinstance(row, dict) else None


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read JSON Lines files as one run. Where no row of a file has a step, the line number is used.

    Raises:
        BlockedError: no line is a JSON object.
        OSError: a file cannot be read.
    """
    logs = row_logs(root, paths)
    notes: list[str] = []
    for path, log in zip(paths, logs, strict=True):
        # Most files have a step in their first row; rows are not held, for they may be many.
        first = next((line for line in lines(path, RowLog(log.source)) if step_key(line.row)), None)
        for line in lines(path, log):
            add_row(log, line, line.number if first is None else None)
        if first is None and log.num_rows:
            notes.append(
                f"{path.name}: no row has a step (one of {', '.join(STEP_KEYS)}); the line number is used"
            )
    return assemble_rows(logs, tags, notes=notes)


def read_with(root: Path, paths: Sequence[Path], tags: Collection[str] | None, add: RowAdder) -> RunLog:
    """Read JSON Lines files whose objects mean what `add` says."""
    logs = row_logs(root, paths)
    for path, log in zip(paths, logs, strict=True):
        for line in lines(path, log):
            add(log, line)
    return assemble_rows(logs, tags)


def lines(path: Path, log: RowLog) -> Iterator[Line]:
    """Yield the objects of a file; what is no object is counted and named in the log's damage."""
    lost: list[int] = []
    number = 0
    ends = True
    for text in raw_lines(path, log):
        number += 1
        ends = text.endswith(b"\n")
        row = parse(text)
        if isinstance(row, _TwiceNamed):
            log.lose(
                number,
                f"line {number}: the key {row.key[:60]!r} appears twice, and one value hides the other",
            )
        if isinstance(row, dict):
            yield Line(number, row)
        elif text.strip():
            lost.append(number)
    if lost and lost[-1] == number and not ends:
        lost.pop()
        log.lose(number, f"truncated in line {number}, which is no whole JSON object", is_cut=True)
    if lost:
        some = ", ".join(str(one) for one in lost[:_MAX_LOST_LINES])
        more = f" and {len(lost) - _MAX_LOST_LINES} more" if len(lost) > _MAX_LOST_LINES else ""
        log.lose(lost[0], f"{len(lost)} of {number} lines are no JSON objects and were lost: {some}{more}")


def raw_lines(path: Path, log: RowLog) -> Iterator[bytes]:
    """Yield the lines of a text log; packed data that ends too early is named in the log's damage."""
    number = 0
    with open_text(path) as stream:
        try:
            while text := stream.readline(MAX_LINE_BYTES):
                number += 1
                yield text
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            cut = isinstance(error, EOFError)
            log.lose(number, f"the gzip data is damaged after line {number}: {error}", is_cut=cut)


def parse(text: bytes | str) -> Any:
    """Return the JSON value of a text (NaN and Infinity are read), or None where it is not JSON."""
    try:
        value = quick_json.parse(text)
        if value is None:
            value = json.loads(text.decode() if isinstance(text, bytes) else text)
        # As many colons as keys: nothing is nested, no key appears twice, and the slow way finds nothing else.
        if type(value) is dict and text.count(b":" if isinstance(text, bytes) else ":") == len(value):  # type: ignore[arg-type]
            return value
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return None


class _TwiceNamed(dict[str, Any]):
    """An object in which a key appears twice."""

    key = ""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(pairs)
    inner = next((value for value in held.values() if isinstance(value, _TwiceNamed)), None)
    if len(held) == len(pairs) and inner is None:
        return held
    marked = _TwiceNamed(held)
    names = Counter(key for key, _ in pairs)
    marked.key = next((key for key, times in names.items() if times > 1), inner.key if inner else "")
    return marked


def step_key(row: Mapping[str, Any]) -> str | None:
    """Return the key under which a row holds its step."""
    for key in STEP_KEYS:
        if key in row and decode_step(row[key]) is not None:
            return key
    return None


def add_row(log: RowLog, line: Line, step: int | None = None) -> None:
    """Add a row whose metrics are next to its step; `step` is used for a row that has none."""
    row = line.row
    key = step_key(row)
    if key is not None:
        raw = row[key]
        step = decode_step(raw)
        of_total = isinstance(raw, str) and "/" in raw
        log.note_total(raw if of_total else row.get("total_steps", row.get("max_steps")))
    time_key = None
    if not row.keys().isdisjoint(TIME_KEYS):
        time_key = next((name for name in TIME_KEYS if name in row and _is_date(row[name])), None)
    # A row with a time and no step is a sample by the clock only where the format says so (prime_rl.py).
    wall_time = None if time_key is None or step is None else float(row[time_key])
    metrics = dict(row)
    for name in (key, time_key):
        if name is not None:
            del metrics[name]
    log.add(step, metrics, line=line.number, wall_time=wall_time)


def _is_date(value: Any) -> bool:
    """Say whether a number is seconds since the epoch rather than since some start."""
    return isinstance(value, int | float) and 1e9 < value < 1e11
