"""verl's rollout dumps: `<step>.jsonl` in `trainer.rollout_data_dir`, with `input`, `output`, `gts`, `score`, `step`.

Source: verl/trainer/ppo/ray_trainer.py (`_dump_generations`), 0.9.1. Texts have no special tokens; `score` is the sum
of token-level scores before any KL penalty. Rows are balanced over ranks, so groups are identified by their prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.evidence.ledger.readers.base import (
    Numbers,
    ReadOptions,
    integer,
    number,
    optional,
    required,
    rows_by_step,
    text,
)
from seatrial.evidence.ledger.schema import LedgerRow

NAME = "verl"
FILE = re.compile(r"(\d+)\.jsonl")


def claims(file: Path, row: Mapping[str, Any] | None) -> bool:
    """Say whether rows have verl's columns."""
    return bool(FILE.fullmatch(file.name)) and row is not None and {"input", "output", "score"} <= row.keys()


def read(files: Sequence[Path], options: ReadOptions) -> list[LedgerRow]:
    """Read verl's rows.

    Raises:
        BlockedError: a row is damaged, or says another step than its file.
        OSError: a file cannot be read.
    """
    prompts = Numbers()

    def read_row(row: Mapping[str, Any], step: int, index: int) -> LedgerRow:
        prompt = required(row, "input", text)
        answer = row.get("gts")
        return LedgerRow(
            step=required({"step": step, **row}, "step", integer),
            index=index,
            prompt_id=prompts(prompt),
            prompt_text=prompt,
            prompt=prompt,
            completion=required(row, "output", text),
            answer=answer if isinstance(answer, str) else None,
            reward=optional(row, "score", number),
        )

    return rows_by_step(files, FILE, options, read_row)
