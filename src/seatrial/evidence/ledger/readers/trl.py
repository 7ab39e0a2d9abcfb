"""TRL's logged completions: parquet files of `log_completions=True`, or the same table as JSON.

Source: trl/trainer/grpo_trainer.py, 1.16.0: columns `step`, `prompt`, `completion` (text or messages), one a reward
function, further ones of the user, and `advantage`. Groups of `num_generations` rows follow one another. The
rewards are before weighting; where weights are not given they are TRL's default, 1 each. ms-swift (4.6.0) writes
`completions.jsonl` with a line for each step, whose fields are lists over its rows, and `advantages`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.evidence.ledger.readers.base import (
    Numbers,
    ReadOptions,
    blocks,
    integer,
    lines,
    named,
    number,
    required,
)
from seatrial.evidence.ledger.schema import LedgerRow

NAME = "TRL"
_OWN = {"step", "prompt", "completion", "advantage"}
_NO_REWARD = _OWN | {"mode", "answer", "image", "images"}

_Rows = list[tuple[str, Mapping[str, Any]]]


def claims(file: Path, row: Mapping[str, Any] | None) -> bool:
    """Say whether a file is a table with TRL's columns; a parquet file by its name, as reading it needs pyarrow."""
    if file.suffix == ".parquet":
        return file.name.startswith("completions")
    if row is None:
        return False
    if _is_step(row):
        return True
    columns = row.get("columns")
    return row.keys() >= _OWN or (isinstance(columns, list) and set(map(str, columns)) >= _OWN)


def read(files: Sequence[Path], options: ReadOptions) -> list[LedgerRow]:
    """Read TRL's rows, in the order of steps; a step that is in two files is there twice.

    Raises:
        BlockedError: a row is damaged, a column of rewards is missing, or pyarrow is.
        OSError: a file cannot be read.
    """
    prompts = Numbers()
    tables = [(table, file) for file in sorted(files) for table in _tables(file)]
    read_rows = [row for table, file in tables for row in _rows(table, file, prompts, options)]
    return sorted((row for row in read_rows if options.includes(row.step)), key=lambda row: row.step)


def _tables(file: Path) -> list[_Rows]:
    """Return (place, row) of each row of a file's tables; ms-swift's file has one for each step."""
    if file.suffix == ".parquet":
        return [_parquet(file)]
    if file.suffix == ".jsonl":
        read: _Rows = list(lines(file))
        if not _is_step(read[0][1]):
            return [read]
        # ms-swift writes its last step again when the run ends.
        if len(read) > 1 and read[-1][1] == read[-2][1]:
            read.pop()
        return [_rows_of_step(place, row) for place, row in read]
    try:
        table = json.loads(file.read_text(encoding="utf-8", errors="replace"))
        rows: _Rows = [
            (f"{file} row {number_of}", dict(zip(table["columns"], cells, strict=True)))
            for number_of, cells in enumerate(table["data"], start=1)
        ]
        return [rows]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BlockedError(f"{file} is damaged: {error}") from error


def _is_step(row: Mapping[str, Any]) -> bool:
    """Return whether an object holds all rows of a step, as ms-swift writes it."""
    return row.keys() >= {"step", "prompt", "completion", "advantages"} and isinstance(row["step"], list)


def _rows_of_step(place: str, row: Mapping[str, Any]) -> _Rows:
    """Return the rows of a step.

    Raises:
        BlockedError: it is no step, or its lists differ in length.
    """
    if not _is_step(row):
        raise BlockedError(f"{place} is damaged: it is no step")
    num_rows = len(row["step"])
    columns = {name: value for name, value in row.items() if isinstance(value, list)}
    short = [name for name, value in columns.items() if len(value) != num_rows]
    if short:
        raise BlockedError(
            f"{place} is damaged: {num_rows} steps, and {len(columns[short[0]])} of {short[0]}"
        )
    columns["advantage"] = columns.pop("advantages")
    columns["step"] = [int(step) if str(step).isdecimal() else step for step in columns["step"]]
    return [
        (f"{place} row {number_of + 1}", {name: value[number_of] for name, value in columns.items()})
        for number_of in range(num_rows)
    ]


def _parquet(file: Path) -> _Rows:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise BlockedError(
            f"{file}: reading parquet needs pyarrow: pip install 'seatrial[readers]'"
        ) from error
    try:
        rows = parquet.read_table(file).to_pylist()
    except (OSError, ValueError) as error:
        raise BlockedError(f"{file} is damaged: {error}") from error
    return [(f"{file} row {number_of}", row) for number_of, row in enumerate(rows, start=1)]


def _rows(table: _Rows, file: Path, prompts: Numbers, options: ReadOptions) -> Iterator[LedgerRow]:
    if not table:
        raise BlockedError(f"{file} is empty: the step left no rows, or they were lost")
    weights = options.reward_weights or dict.fromkeys(_reward_columns(table), 1.0)
    numbered = [prompts(_words(row.get("prompt"))) for _, row in table]
    groups = blocks(numbered, options.group_size)
    for index, ((place, row), prompt_id, group) in enumerate(zip(table, numbered, groups, strict=True)):
        with named(place):
            answer = row.get("answer")
            yield LedgerRow(
                step=required(row, "step", integer),
                index=index,
                prompt_id=prompt_id,
                group=group,
                prompt=_words(required(row, "prompt", _given)),
                completion=_words(required(row, "completion", _given)),
                answer=answer if isinstance(answer, str) else None,
                reward=_reward(row, weights),
                advantage=required(row, "advantage", number),
            )


def _reward_columns(table: _Rows) -> list[str]:
    """Return the columns of numbers that are not TRL's own; a row has None or NaN where a function gave no reward."""
    names = [name for name in table[0][1] if name not in _NO_REWARD]
    return [
        name
        for name in names
        if all(isinstance(row.get(name), int | float | None) for _, row in table)
        and any(row.get(name) is not None for _, row in table)
    ]


def _reward(row: Mapping[str, Any], weights: Mapping[str, float]) -> float | None:
    """Return the weighted sum of what the reward functions gave; NaN where none gave any.

    Raises:
        ValueError: a column is missing or holds no number.
    """
    if not weights:
        return None
    given = {
        name: math.nan if name in row and row[name] is None else required(row, name, number)
        for name in weights
    }
    parts = [weights[name] * value for name, value in given.items() if not math.isnan(value)]
    return math.fsum(parts) if parts and all(map(math.isfinite, parts)) else sum(parts) if parts else math.nan


def _given(value: Any) -> Any:
    """Return a prompt or completion.

    Raises:
        ValueError: it is neither a text nor messages.
    """
    if not isinstance(value, str | list):
        raise ValueError("neither a text nor messages")
    return value


def _words(value: Any) -> str:
    """Return a text as it is; the content of a single message; longer conversations as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        content = value[0].get("content")
        if isinstance(content, str):
            return content
    return json.dumps(value, sort_keys=True, default=str)
