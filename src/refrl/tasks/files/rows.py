"""What a file of rows offers, and how a row becomes prompt and answer."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from refrl.config import ConfigError


class RowFile(Protocol):
    """Rows with a number each; one row is held at a time, or one group of rows."""

    path: Path

    def scan(self) -> Iterator[Mapping[str, Any]]:
        """Yield every row in its order; `row` works for those that were yielded.

        Raises:
            ConfigError: a row cannot be read; the message has its place.
        """
        ...

    def row(self, number: int) -> Mapping[str, Any]:
        """Return one row, read again."""
        ...

    def place(self, number: int) -> str:
        """Return the location of a row, for messages: `train.jsonl line 7`."""
        ...


@dataclass(frozen=True)
class Columns:
    """Which columns hold what."""

    prompt: str
    answer: str
    solution: str | None

    def named(self) -> dict[str, str]:
        """Return the columns by the option that names them."""
        named = {"data.prompt_key": self.prompt, "data.answer_key": self.answer}
        return named if self.solution is None else {**named, "data.solution_key": self.solution}

    def fit(self, row: Mapping[str, Any], place: str) -> tuple[str, str, str | None]:
        """Return (prompt, answer, solution) of a row.

        Raises:
            ConfigError: a column is missing, or holds what cannot be used; the message names the place and the column.
        """
        prompt = lookup(row, self.prompt, place, "data.prompt_key")
        if not isinstance(prompt, str) or not prompt:
            raise _unfit(place, self.prompt, "data.prompt_key", prompt, "a text that is not empty")
        answer = _as_text(lookup(row, self.answer, place, "data.answer_key"))
        if answer is None:
            found = lookup(row, self.answer, place, "data.answer_key")
            raise _unfit(
                place, self.answer, "data.answer_key", found, "a text, a number, a list or a mapping"
            )
        if self.solution is None:
            return prompt, answer, None
        solution = lookup(row, self.solution, place, "data.solution_key")
        if not isinstance(solution, str) or not solution:
            raise _unfit(place, self.solution, "data.solution_key", solution, "a text that is not empty")
        return prompt, answer, solution


def lookup(row: Mapping[str, Any], key: str, place: str, option: str) -> Any:
    """Return the value of a column; dots reach into mappings where no column has the whole name.

    Raises:
        ConfigError: there is none; the message names the columns that there are.
    """
    if key in row:
        return row[key]
    value: Any = row
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            columns = ", ".join(map(repr, row)) or "none"
            raise ConfigError(f"{place} has no column {key!r} ({option}); its columns: {columns}")
        value = value[name]
    return value


def _as_text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return str(value) if math.isfinite(value) else None
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return None


def _unfit(place: str, key: str, option: str, value: Any, wanted: str) -> ConfigError:
    shown = repr(value)
    return ConfigError(
        f"{place}: the column {key!r} ({option}) holds {shown[:80] + '...' if len(shown) > 80 else shown}; it must be "
        f"{wanted}"
    )
