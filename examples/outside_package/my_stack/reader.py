"""A reader: a log of lines such as `it=3 loss=0.52 reward=0.1`, in files that end in `.kv`.

A reader is a module with NAME, PRIORITY, `claims` and `read`; every command of seatrial that takes a log then reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from seatrial.evidence.readers.rows import assemble_rows, row_logs
from seatrial.evidence.runlog import RunLog

NAME = "my stack's log"
PRIORITY = 30
"""Of several readers that claim files of a folder, the one of highest priority reads it."""


def claims(file: Path, head: bytes) -> bool:
    """Say whether a file has this format; `head` is its first bytes."""
    return file.suffix == ".kv" and head.startswith(b"it=")


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read files of this format as one log; a line that cannot be read is kept as damage, and never passes a check.

    Raises:
        BlockedError: no line could be read.
        OSError: a file cannot be read.
    """
    logs = row_logs(root, paths)
    for path, log in zip(paths, logs, strict=True):
        for number, line in enumerate(
            path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1
        ):
            pairs = [word.partition("=") for word in line.split()]
            values = {key: value for key, equals, value in pairs if equals}
            step = values.pop("it", "")
            if step.isdecimal() and values:
                log.add(
                    int(step), {f"train/{key}": _number(value) for key, value in values.items()}, line=number
                )
            else:
                log.lose(number, f"line {number} is no `it=N key=value ...`")
    return assemble_rows(logs, tags)


def _number(text: str) -> float | str:
    """Return a number; other text is kept, and a check that reads it reports that it is no number."""
    try:
        return float(text)
    except ValueError:
        return text
