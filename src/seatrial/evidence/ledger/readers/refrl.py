"""refrl's rows (`train_data_step<N>.jsonl`, `validation_data_step<N>.jsonl`): with the schema's column names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.evidence.ledger.readers.base import (
    ReadOptions,
    flag,
    integer,
    integers,
    lines,
    named,
    number,
    numbers,
    optional,
    required,
    rows_by_step,
    text,
)
from seatrial.evidence.ledger.schema import LedgerRow, ValidationRow

NAME = "refrl"
FILE = re.compile(r"train_data_step(\d+)\.jsonl")

_ALWAYS = ("step", "index", "prompt_id")
_COLUMNS: Mapping[str, Callable[[Any], Any]] = {
    "group": integer,
    "prompt": text,
    "prompt_text": text,
    "media": text,
    "completion": text,
    "answer": text,
    "token_ids": integers,
    "prompt_length": integer,
    "loss_mask": numbers,
    "filtered": flag,
    "generation_logprobs": numbers,
    "prev_logprobs": numbers,
    "reference_logprobs": numbers,
    "kept_support_sizes": integers,
    "reward": number,
    "length_penalty": number,
    "verifier": text,
    "verifier_error": flag,
    "advantage": number,
    "token_advantages": numbers,
    "finish_reason": text,
    "weight_version": integer,
}


def claims(file: Path, row: Mapping[str, Any] | None) -> bool:
    """Say whether rows have a number of their prompt."""
    return bool(FILE.fullmatch(file.name)) and row is not None and {"step", "index"} <= row.keys()


def read(files: Sequence[Path], options: ReadOptions) -> list[LedgerRow]:
    """Read refrl's rows, in the order of steps and lines; those of a step must say the step of the file's name.

    Raises:
        BlockedError: a row is damaged.
        OSError: a file cannot be read.
    """
    return rows_by_step(files, FILE, options, lambda row, _step, _index: _row(row))


def _row(row: Mapping[str, Any]) -> LedgerRow:
    cells: dict[str, Any] = {column: required(row, column, integer) for column in _ALWAYS}
    cells.update((column, optional(row, column, cell)) for column, cell in _COLUMNS.items())
    return LedgerRow(**cells, version_segments=optional(row, "weight_version_segments", _pairs) or ())


def _pairs(value: Any) -> tuple[tuple[int, int], ...]:
    """Return pairs of whole numbers.

    Raises:
        ValueError: it is no list of them.
    """
    found = [integers(pair) for pair in value] if isinstance(value, list) else None
    if found is None or any(len(pair) != 2 for pair in found):
        raise ValueError(f"{str(value)[:40]} is no list of pairs")
    return tuple((pair[0], pair[1]) for pair in found)


_VALIDATION_FILE = re.compile(r"validation_data_step(\d+)\.jsonl")


def read_validation(directory: Path) -> dict[int, list[ValidationRow]]:
    """Read the rows of every validation, by step; a run that left none gives an empty mapping.

    Raises:
        BlockedError: a line is damaged.
    """
    matches = [(_VALIDATION_FILE.fullmatch(file.name), file) for file in directory.glob("*.jsonl")]
    steps = sorted((int(match[1]), file) for match, file in matches if match)
    return {step: _validation_rows(file, step) for step, file in steps}


def _validation_rows(file: Path, step: int) -> list[ValidationRow]:
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
