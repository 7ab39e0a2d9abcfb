"""The ledger of a run: one row per trained sample, as `train_data_step<N>.jsonl` holds it.

Curves are averages; the ledger is what was sampled, rewarded and trained on, row by row. Every judgement on
it works the figures out again from the rows themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError

_FILE = re.compile(r"train_data_step(\d+)\.jsonl")
_VALIDATION_FILE = re.compile(r"validation_data_step(\d+)\.jsonl")


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """One sample that was trained on. T is the number of its completion tokens."""

    step: int
    index: int
    """Place in the step's batch."""
    prompt_id: int
    prompt: str
    completion: str
    answer: str
    task: str
    token_ids: tuple[int, ...]
    """The prompt's tokens, then the T sampled ones."""
    prompt_length: int
    """Tokens of the prompt."""
    generation_logprobs: tuple[float, ...]
    """T log-probabilities by the sampler."""
    prev_logprobs: tuple[float, ...]
    """T log-probabilities by the trainer before the update."""
    reward: float
    advantage: float
    finish_reason: str

    @property
    def sampled_ids(self) -> tuple[int, ...]:
        """The T sampled tokens."""
        return self.token_ids[self.prompt_length :]

    def where(self) -> str:
        """Return the place of the row for a message: `step 2 row 5`."""
        return f"step {self.step} row {self.index}"


@dataclass(frozen=True, kw_only=True)
class ValidationRow:
    """One held-out prompt at one validation."""

    step: int
    index: int
    prompt_id: int
    reward: float


def read_ledger(directory: Path) -> list[LedgerRow]:
    """Read every step's rows, in order of step and line; a run that left none gives an empty list.

    Raises:
        BlockedError: a line is damaged (named by file and line).
    """
    files = _files(directory, _FILE)
    return [_ledger_row(row, place) for step, file in files for place, row in _rows(file, step)]


def read_validation(directory: Path) -> dict[int, list[ValidationRow]]:
    """Read the rows of every validation, by step; a run that left none gives an empty mapping.

    Raises:
        BlockedError: a line is damaged.
    """
    files = _files(directory, _VALIDATION_FILE)
    return {step: [_validation_row(row, place) for place, row in _rows(file, step)] for step, file in files}


def _files(directory: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    matches = [(pattern.fullmatch(file.name), file) for file in directory.glob("*.jsonl")]
    return sorted((int(match[1]), file) for match, file in matches if match)


def _rows(file: Path, step: int) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (place, row) of each line; each must say the step that the file's name says."""
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        place = f"{file} line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BlockedError(f"{place} is damaged: {error}") from error
        if not isinstance(row, dict) or row.get("step") != step:
            raise BlockedError(f"{place} is damaged: it is no row of step {step}")
        rows.append((place, row))
    return rows


def _ledger_row(row: Mapping[str, Any], place: str) -> LedgerRow:
    try:
        return LedgerRow(
            step=int(row["step"]),
            index=int(row["index"]),
            prompt_id=int(row["prompt_id"]),
            prompt=str(row["prompt"]),
            completion=str(row["completion"]),
            answer=str(row["answer"]),
            task=str(row["task"]),
            token_ids=tuple(int(token) for token in row["token_ids"]),
            prompt_length=int(row["prompt_length"]),
            generation_logprobs=_floats(row["generation_logprobs"]),
            prev_logprobs=_floats(row["prev_logprobs"]),
            reward=float(row["reward"]),
            advantage=float(row["advantage"]),
            finish_reason=str(row["finish_reason"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BlockedError(f"{place} is damaged: {type(error).__name__}: {error}") from error


def _validation_row(row: Mapping[str, Any], place: str) -> ValidationRow:
    try:
        return ValidationRow(
            step=int(row["step"]),
            index=int(row["index"]),
            prompt_id=int(row["prompt_id"]),
            reward=float(row["reward"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BlockedError(f"{place} is damaged: {type(error).__name__}: {error}") from error


def _floats(values: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
