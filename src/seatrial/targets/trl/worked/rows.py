"""Rows of the tables of TRL's worked examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.common import worked_rows
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.trl.preferences import find_trainer

UTILS = "trl.trainer.utils"
EXPERIMENTAL = "trl.experimental.utils"

__all__ = ["EXPERIMENTAL", "UTILS", "Row", "by_trainer", "examples", "of_release"]


def _with_state(example: WorkedExample) -> WorkedExample:
    def call() -> object:
        from accelerate import Accelerator

        Accelerator(cpu=True)  # whose state TRL's loggers and callbacks need
        return example.call()

    return WorkedExample(name=example.name, call=call, right=example.right)


def examples(rows: Iterable[Row], subject: str) -> list[WorkedExample]:
    """Return the worked examples of a subject."""
    return [_with_state(example) for example in worked_rows.examples("trl", rows, subject)]


def of_release(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows whose function the installed release has.

    Raises:
        Gone: there is none.
    """
    found = []
    for row in rows:
        with suppress(Gone, ImportError, RuntimeError):
            find_name("trl", row.place.split())
            found.append(row)
    if not found:
        raise Gone(f"trl {release('trl')} has no {', '.join(sorted({row.function for row in rows}))}")
    return found


def by_trainer(
    kind: str, names: Iterable[str], rows_of: Callable[[str], Iterable[Row]]
) -> dict[str, Callable[[], Sequence[Row]]]:
    """Return what makes the rows of each trainer by the adapter `KIND-TRAINER`; it raises Gone where there is none."""
    return {f"{kind}-{name.lower()}": partial(_made, rows_of, name) for name in names}


def _made(rows_of: Callable[[str], Iterable[Row]], name: str) -> Sequence[Row]:
    find_trainer(name)
    return list(rows_of(name))
