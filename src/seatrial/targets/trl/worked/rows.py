"""A row of the tables of worked examples, and how it becomes an example."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from seatrial.relations.contracts.worked import WorkedExample
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import misfit_of
from seatrial.targets.common.known import before
from seatrial.targets.common.rank_worker import adapter_package
from seatrial.targets.common.target import Gone, find_name, release

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
    since: str = "0"
    """The first release of TRL that gives this; what earlier ones gave was documented otherwise, or not at all."""

    @property
    def function(self) -> str:
        """The public name."""
        return self.place.rpartition(":")[2]


def _called(row: Row) -> Any:
    """Call a row's function.

    Raises:
        NotServed: the release does not have it, is older than the result, takes other arguments or reads more of them
            than the example has, or a package or a model of the Hub that it needs is missing.
    """
    if before("trl", row.since)(None):
        raise NotServed(f"trl {release('trl')} documents another result: this one is of {row.since}")
    from accelerate import Accelerator

    Accelerator(cpu=True)  # whose state TRL's loggers and callbacks need
    # A model that cannot be made leaves another type, and options of a run the precision of every run after it.
    dtype, variables = torch.get_default_dtype(), dict(os.environ)
    try:
        return row.call(find_name("trl", row.place.split()))
    except (Gone, ImportError, OSError) as error:
        raise NotServed(str(error)) from error
    except RuntimeError as error:
        if "Failed to import" not in str(error):
            raise
        raise NotServed(str(error)) from error
    except (AttributeError, TypeError) as error:
        misfit = misfit_of(error, adapter_package(__name__))
        if misfit is None and isinstance(getattr(error, "obj", None), SimpleNamespace):
            misfit = str(error)  # of a stand-in that an example gives
        if misfit is None:
            raise
        raise NotServed(f"the call does not fit this release: {misfit}") from error
    finally:
        torch.set_default_dtype(dtype)
        os.environ.clear()
        os.environ.update(variables)


def examples(rows: Iterable[Row], subject: str) -> list[WorkedExample]:
    """Return the worked examples of a subject."""
    return [
        WorkedExample(name=f"{row.function}, {row.name}", call=partial(_called, row), right=row.right)
        for row in rows
        if row.subject == subject
    ]
