"""Rows of the tables of TRL's worked examples."""

from __future__ import annotations

from collections.abc import Iterable

from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.common import worked_rows
from seatrial.targets.common.worked_rows import Row

UTILS = "trl.trainer.utils"
EXPERIMENTAL = "trl.experimental.utils"

__all__ = ["EXPERIMENTAL", "UTILS", "Row", "examples"]


def _with_state(example: WorkedExample) -> WorkedExample:
    def call() -> object:
        from accelerate import Accelerator

        Accelerator(cpu=True)  # whose state TRL's loggers and callbacks need
        return example.call()

    return WorkedExample(name=example.name, call=call, right=example.right)


def examples(rows: Iterable[Row], subject: str) -> list[WorkedExample]:
    """Return the worked examples of a subject."""
    return [_with_state(example) for example in worked_rows.examples("trl", rows, subject)]
