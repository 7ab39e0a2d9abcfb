"""Verdict on the files of rows: one JSON object a line, for every reader of lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from seatrial.errors import BlockedError
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.options import options_of
from seatrial.trials.sensors.paths import sensor
from seatrial.trials.sensors.row_fields import wrong_fields

FILES = "*_data_step*.jsonl"
"""Rows that trained, of validations, and what became of groups and of prompts that were drawn."""


def rows_have_lines(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Each line of a file of rows is one JSON object, in ASCII: no text has what some reader takes for a line's end.

    Readers differ in where lines end (U+2028, U+0085). In ASCII, JSON writes all such characters as escapes. Fields
    that no other check reads are those of the options and of the row's other fields.

    Raises:
        NotGivenError: the target does not say how the run is configured, or writes no such files.
        BlockedError: a file cannot be read.
    """
    options = options_of(evidence)
    paths = sorted(evidence.job.ledger_dir.glob(FILES))
    if not paths:
        raise NotGivenError("the run writes no files of rows")
    wrong, number = [], 0
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise BlockedError(f"{path}: {error.strerror}") from error
        number += content.count(b"\n")
        wrong += [
            f"{path.name}: {what}" for what in _wrong_lines(content, path.name.split("_step")[0], options)
        ]
    return wrong[:3], f"{number} lines of {len(paths)} files", number


ROW_FILES = sensor("rows: one JSON object a line, in ASCII", "every line of every file", rows_have_lines)


def _wrong_lines(content: bytes, kind: str, options: Mapping[str, Any]) -> Iterator[str]:
    if not content.isascii():
        place = next(place for place, byte in enumerate(content) if byte > 127)
        yield f"line {content.count(bytes([10]), 0, place) + 1} is not in ASCII"
        return
    for number, line in enumerate(content.decode("ascii").splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            yield f"line {number} is no JSON object"
            return
        yield from (f"line {number} {what}" for what in wrong_fields(kind, row, options))
