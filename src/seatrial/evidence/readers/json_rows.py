"""One JSON list of rows with a step each, as `json.dump(trainer.state.log_history, file)` writes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.evidence.readers import jsonl
from seatrial.evidence.readers.opening import read_text, suffix_of
from seatrial.evidence.readers.rows import assemble_rows, row_logs
from seatrial.evidence.runlog import RunLog

NAME = "JSON list of rows"
PRIORITY = 25


def claims(file: Path, head: bytes) -> bool:
    """Say whether a file is a list whose first rows are objects, one of them with a step."""
    text = head.lstrip()
    if suffix_of(file) != ".json" or not text.startswith(b"["):
        return False
    if not any(f'"{key}"'.encode() in text for key in jsonl.STEP_KEYS):
        return False
    rows = _rows(file)
    return any(isinstance(row, Mapping) and jsonl.step_key(row) for row in rows[:10])


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read lists of rows.

    Raises:
        BlockedError: no file is such a list.
        OSError: a file cannot be read.
    """
    logs = row_logs(root, paths)
    for path, log in zip(paths, logs, strict=True):
        rows = _rows(path)
        if not rows:
            log.lose(0, "not a JSON list of rows: the file is damaged or truncated")
        for number, row in enumerate(rows, start=1):
            if isinstance(row, Mapping) and jsonl.step_key(row):
                jsonl.add_row(log, jsonl.Line(number, row))
            else:
                log.lose(number, f"entry {number} of the list is no row with a step")
    return assemble_rows(logs, tags)


def _rows(path: Path) -> list[Any]:
    try:
        rows = jsonl.parse(read_text(path))
    except BlockedError:
        return []
    return rows if isinstance(rows, list) else []
