"""A row of the tables of worked examples, and how it becomes an example."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from seatrial.relations.contracts.worked import WorkedExample
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name

UTILS = "trl.trainer.utils"
EXPERIMENTAL = "trl.experimental.utils"


class Row(NamedTuple):
    """A function, calls of it, and what they give by its documentation."""

    subject: str
    """Of `contracts.worked.SUBJECTS`."""
    place: str
    """`module:name`; several, separated by blanks, where releases have moved it."""
    name: str
    """What is tried, in a few words."""
    call: Callable[[Any], Any]
    """Takes the function."""
    right: Any

    @property
    def function(self) -> str:
        """The public name."""
        return self.place.rpartition(":")[2]


def _called(row: Row) -> Any:
    """Call a row's function.

    Raises:
        NotServed: the release does not have it, or a package or a model of the Hub that it needs is missing.
    """
    from accelerate import Accelerator

    Accelerator(cpu=True)  # whose state TRL's loggers and callbacks need
    try:
        return row.call(find_name("trl", row.place.split()))
    except (Gone, ImportError, OSError) as error:
        raise NotServed(str(error)) from error
    except RuntimeError as error:
        if "Failed to import" not in str(error):
            raise
        raise NotServed(str(error)) from error


def examples(rows: Iterable[Row], subject: str) -> list[WorkedExample]:
    """Return the worked examples of a subject."""
    return [
        WorkedExample(name=f"{row.function}, {row.name}", call=partial(_called, row), right=row.right)
        for row in rows
        if row.subject == subject
    ]
