"""Rows of a run's validations, as refrl writes them: `validation_data_step<N>.jsonl`."""

from __future__ import annotations

import re
from pathlib import Path

from seatrial.evidence.ledger.readers.cells import integer, lines, named, number, required
from seatrial.evidence.ledger.schema import ValidationRow

_FILE = re.compile(r"validation_data_step(\d+)\.jsonl")


def read_validation(directory: Path) -> dict[int, list[ValidationRow]]:
    """Read the rows of every validation, by step; a run that left none gives an empty mapping.

    Raises:
        BlockedError: a line is damaged.
    """
    matches = [(_FILE.fullmatch(file.name), file) for file in directory.glob("*.jsonl")]
    steps = sorted((int(match[1]), file) for match, file in matches if match)
    return {step: _rows(file, step) for step, file in steps}


def _rows(file: Path, step: int) -> list[ValidationRow]:
    rows = []
    for place, row in lines(file):
        with named(place):
            if row.get("step") != step:
                raise ValueError(f"it is no row of step {step}")
            rows.append(
                ValidationRow(
                    step=step,
                    index=required(row, "index", integer),
                    prompt_id=required(row, "prompt_id", integer),
                    reward=required(row, "reward", number),
                )
            )
    return rows
