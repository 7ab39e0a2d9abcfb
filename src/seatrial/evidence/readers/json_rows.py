"""One JSON list of rows with a step each, as `json.dump(trainer.state.log_history, file)` writes it.

Where no row has a step and each counts epochs, updates, episodes or rounds, that is the step if it is whole and rises;
otherwise, and where each has a loss or a reward instead, the place in the list is.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.evidence.readers import jsonl
from seatrial.evidence.readers.opening import read_text, suffix_of
from seatrial.evidence.readers.points import decode, decode_step
from seatrial.evidence.readers.rows import assemble_rows, row_logs
from seatrial.evidence.runlog import RunLog

NAME = "JSON list of rows"
PRIORITY = 25
_COUNTERS = ("update", "episode", "epoch", "round")
_MAIN = ("loss", "reward", "mean_reward", "reward_mean", "avg_reward")


def claims(file: Path, head: bytes) -> bool:
    """Say whether a file is a list of objects: one of the first has a step, or all have a counter or a loss."""
    text = head.lstrip()
    if suffix_of(file) != ".json" or not text.startswith(b"["):
        return False
    if not any(f'"{key}"'.encode() in text for key in (*jsonl.STEP_KEYS, *_COUNTERS, *_MAIN)):
        return False
    rows, _ = _rows(file)
    has_step = any(isinstance(row, Mapping) and jsonl.step_key(row) for row in rows[:10])
    return has_step or _counted(rows) is not None


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read lists of rows.

    Raises:
        BlockedError: no file is such a list.
        OSError: a file cannot be read.
    """
    logs = row_logs(root, paths)
    for path, log in zip(paths, logs, strict=True):
        rows, is_whole = _rows(path)
        if not rows:
            log.lose(0, "not a JSON list of rows: the file is damaged or truncated")
        elif not is_whole:
            log.lose(len(rows), f"truncated after row {len(rows)} of the list", is_cut=True)
        counted = _counted(rows)
        for number, row in enumerate(rows, start=1):
            if isinstance(row, Mapping) and (counted or jsonl.step_key(row)):
                jsonl.add_row(log, jsonl.Line(number, row), counted[number - 1] if counted else None)
            else:
                log.lose(number, f"entry {number} of the list is no row with a step")
    return assemble_rows(logs, tags)


def _counted(rows: list[Any]) -> list[int] | None:
    """Return the steps of rows that have a counter in place of a step; None where one has none, or a step."""
    if not rows or not all(isinstance(row, Mapping) and jsonl.step_key(row) is None for row in rows):
        return None
    key = next((key for key in (*_COUNTERS, *_MAIN) if all(decode(row.get(key, "")) for row in rows)), None)
    if key is None:
        return None
    if key in _MAIN:
        return list(range(1, len(rows) + 1))
    steps = [step for row in rows if (step := decode_step(row[key])) is not None]
    rises = all(before < after for before, after in itertools.pairwise(steps))
    return steps if rises and len(steps) == len(rows) else list(range(1, len(rows) + 1))


def _rows(path: Path) -> tuple[list[Any], bool]:
    """Return the rows of a list, and whether it is whole; of a list that is cut off those before the cut."""
    try:
        text = read_text(path)
    except BlockedError:
        return [], False
    rows = jsonl.parse(text)
    if rows is None:
        return list(_before_the_cut(text.decode(errors="replace"))), False
    return (rows, True) if isinstance(rows, list) else ([], True)


def _before_the_cut(text: str) -> Iterator[Any]:
    """Yield the objects of a list up to the first that is not whole."""
    decoder, place = json.JSONDecoder(), text.find("[") + 1
    while (begin := text.find("{", place)) >= 0 and not text[place:begin].strip(" \t\r\n,"):
        try:
            row, place = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            return
        yield row
