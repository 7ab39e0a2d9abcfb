"""What a reader of a ledger is, and what it is told beside the files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from seatrial.evidence.ledger.schema import LedgerRow


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What a person knows of rows that their stack did not write."""

    group_size: int | None = None
    """Completions of a prompt, where groups are told by order."""
    reward_weights: Mapping[str, float] | None = None
    """Weight of each reward column; None: every column of numbers, with weight 1."""
    first_step: int | None = None
    """Rows of earlier steps are not read."""
    last_step: int | None = None
    """Rows of later steps are not read."""

    def asks_for(self, step: int) -> bool:
        """Say whether the rows of a step are to be read."""
        early = self.first_step is not None and step < self.first_step
        return not early and (self.last_step is None or step <= self.last_step)


def files_by_step(
    files: Sequence[Path], pattern: re.Pattern[str], options: ReadOptions
) -> list[tuple[int, Path]]:
    """Return the files whose name says a step that is asked for, in the order of steps.

    Args:
        files: of one stack.
        pattern: of their names; its first group is the step.
        options: which steps are asked for.
    """
    matches = [(pattern.fullmatch(file.name), file) for file in files]
    steps = sorted((int(match[1]), file) for match, file in matches if match)
    return [(step, file) for step, file in steps if options.asks_for(step)]


class LedgerReader(Protocol):
    """A module that reads one stack's rows."""

    NAME: str
    """Name of the stack."""

    def claims(self, file: Path, row: Mapping[str, Any] | None) -> bool:
        """Say whether a file holds this stack's rows.

        Args:
            file: its name may tell the step.
            row: the JSON object of its first line; None where it holds none.
        """
        ...

    def read(self, files: Sequence[Path], options: ReadOptions) -> list[LedgerRow]:
        """Read every row, in the order of steps and lines.

        Raises:
            BlockedError: a row is damaged (named by file and line).
            OSError: a file cannot be read.
        """
        ...
